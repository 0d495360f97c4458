raise AssertionError("imported although it needs a newer core")
