import assert from 'node:assert/strict'
import { json } from '../execution/tool-target.ts'
import { eventually } from '../support/app.ts'
import { forSuite } from '../support/suite.ts'
import { attempts, chain, startRunApp } from './fixtures.ts'

/** Events during a chain of nodes whose worker advances the run without reading it. */
describe('hostile chains of nodes', function () {
  this.timeout(60_000)
  const app = forSuite(() => startRunApp({ actions: ['orchestrations:*', 'tools:*', 'usage:*'] }))

  const tools = async () => ({ first: await app.tool(), second: await app.tool(), third: await app.tool() })
  const orchestrationOf = ({ first, second, third }: Awaited<ReturnType<typeof tools>>) =>
    app.orchestration(
      Object.entries({ a: first, b: second, c: third }).map(([id, tool_id]) => ({ id, type: 'tool', tool_id })),
      chain('a', 'b', 'c'),
    )

  /** A run whose second call is answered by `answer`. */
  const ending = async (answer: (...args: Parameters<ReturnType<typeof json>>) => void) => {
    app.target.requests.length = 0
    app.target.answer = (request, response) =>
      app.target.requests.length === 2 ? answer(request, response) : json({ ok: true })(request, response)
    const run = await app.start(await orchestrationOf(await tools()), { wait: false })
    return app.until(run.id)
  }

  /** The second call waits until what this answers gives the answer. */
  const holdSecond = () => {
    let release = () => {}
    app.target.requests.length = 0
    app.target.answer = (request, response) => {
      const answer = () => json({ ok: true })(request, response)
      if (app.target.requests.length === 2) release = answer
      else answer()
    }
    return () => release()
  }

  const raw = (text: string | Buffer) => (_request: unknown, response: any) => {
    response.writeHead(200, { 'content-type': 'application/json' })
    response.end(text)
  }
  for (const [name, body] of Object.entries({
    'a NUL': '{"text":"a\\u0000b"}',
    'half a surrogate pair': '{"text":"\\ud800"}',
    'a NUL in a key': '{"\\u0000":1}',
    'bytes that are no text': Buffer.from([0x7b, 0xff, 0xfe, 0x7d]),
    'a number beyond doubles': '{"n":1e999}',
    ['__proto__']: '{"__proto__":{"polluted":true},"constructor":{"prototype":{"polluted":true}}}',
  }))
    it(`continue after a tool responds with ${name}`, async () => {
      const run = await ending(raw(body))
      assert.deepEqual(attempts(run), ['a:1:completed', 'b:1:completed', 'c:1:completed'])
      assert.equal(({} as { polluted?: boolean }).polluted, undefined)
      const { body: used } = await app.key.get(`/usage/events?orchestration_run_id=${run.id}&meter_type=tool_execution`)
      assert.equal(used.total, app.target.requests.length)
    })

  it('fail for a tool response that is nested too deeply', async () => {
    const run = await ending(raw(`${'['.repeat(5000)}${']'.repeat(5000)}`))
    assert.deepEqual(attempts(run), ['a:1:completed', 'b:1:failed'])
    assert.equal(run.error.code, 'TOOL_HTTP_ERROR')
  })

  it('fail when the tool of a later node is deleted in the meantime', async () => {
    const made = await tools()
    const orchestration = await orchestrationOf(made)
    const release = holdSecond()
    const { id } = await app.start(orchestration, { wait: false })
    await eventually(() => app.target.requests.length === 2)
    assert.equal((await app.admin.delete(`/tools/${made.third}?force=true`)).status, 204)
    release()
    const run = await app.until(id)
    assert.deepEqual(attempts(run), ['a:1:completed', 'b:1:completed', 'c:1:failed'])
    assert.equal(run.error.code, 'TOOL_NOT_FOUND')
    assert.equal(app.target.requests.length, 2)
  })

  it('continue when the key that started them is deleted in the meantime', async () => {
    const release = holdSecond()
    const orchestration = await orchestrationOf(await tools())
    const { body: policy } = await app.admin.post('/policies', {
      document: { statement: [{ effect: 'Allow', action: ['orchestrations:*'], resource: ['*'] }] },
    })
    const { body: key } = await app.admin.post('/project-keys', {
      project_id: app.projectId,
      policy_ids: [policy.id],
    })
    const started = await app.as(key.secret).post('/orchestration-runs', { orchestration_id: orchestration })
    assert.equal(started.status, 201)
    const { id } = started.body
    await eventually(() => app.target.requests.length === 2)
    assert.equal((await app.admin.delete(`/project-keys/${key.id}`)).status, 204)
    release()
    const run = await app.until(id)
    assert.equal(run.status, 'succeeded')
    assert.equal(app.target.requests.length, 3)
  })
})
