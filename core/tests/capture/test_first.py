import openai


def test_an_openai_client_is_captured(house, exact):
    with house(["Hello there.", "Fine, thanks."]) as house, house.job() as job:
        client = openai.OpenAI(base_url=f"{job.url}/v1", api_key=job.key)
        messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello"}]
        said = client.chat.completions.create(model="any", messages=messages)
        assert said.choices[0].message.content == "Hello there."
        assert said.usage.completion_tokens > 0
        messages += [said.choices[0].message, {"role": "user", "content": "How are you?"}]
        with client.chat.completions.stream(model="any", messages=messages) as stream:
            for _ in stream:
                pass
            assert stream.get_final_completion().choices[0].message.content == "Fine, thanks."
    assert job.result.error is None, job.result.error
    assert len(job.result.trajectory.segments) == 1
    assert [turn.role for turn in job.result.trajectory.turns] == ["prompt", "assistant", "user", "assistant"]
    exact(house, job.result)
