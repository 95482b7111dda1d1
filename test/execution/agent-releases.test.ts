import assert from 'node:assert/strict'
import { createHash } from 'node:crypto'
import { newId } from '#core/base/ids.ts'
import { sql } from '#core/db/sql.ts'
import { client } from '../local/double/client.ts'
import { type Client, eventually, type Reply } from '../support/app.ts'
import { runWorker, steadyWorkers } from '../support/hosts.ts'
import { startProcess, type TestProcess } from '../support/processes.ts'
import { forSuite } from '../support/suite.ts'
import { type AgentApp, startAgentApp } from './fixtures.ts'
import { openStream, readStream } from './streams.ts'

type Json = Record<string, any>

const ok = (reply: Reply, status = 200): any => {
  assert.equal(reply.status, status, JSON.stringify(reply.body))
  return reply.body
}
const refused = (reply: Reply, status: number, code: string): Json => {
  assert.deepEqual([reply.status, reply.body?.error?.code], [status, code], JSON.stringify(reply.body))
  return reply.body.error.meta
}
const refusedAt = (reply: Reply, path: string, code?: string): void => {
  const { problems } = refused(reply, 400, 'VALIDATION_FAILED')
  const problem = problems.find((each: Json) => each.path === path)
  assert.ok(problem, JSON.stringify(problems))
  if (code) assert.equal(problem.code, code, JSON.stringify(problems))
}

/** The rule by which end users are distinguished, written down a second time. */
const bucketOf = (agentId: string, key: string): number =>
  createHash('sha256').update(`${agentId}:${key}`).digest().readUInt32BE(0) % 100

/** What a test does with releases, as a caller with these rights. */
const ACTIONS = [
  'agents:*',
  'ai-providers:*',
  'model-routes:*',
  'generations:*',
  'sessions:*',
  'actors:*',
  'conversations:*',
  'events:*',
]

/** Verbs on one application. Versions 1, 2 and 3 of an agent answer `one`, `two` and `three`. */
function verbs(app: AgentApp) {
  const { key } = app
  const double = client(app.double)
  const answers = () =>
    Promise.all(['one', 'two', 'three'].map(lane => double.put(lane, { rules: [{ reply: { text: lane } }] })))
  const three = async (fields: Json = {}) => {
    const id = await app.agent({ model: 'one/m', ...fields })
    await patch(id, { model: 'two/m' })
    await patch(id, { model: 'three/m' })
    return id
  }
  const patch = async (id: string, fields: Json) => ok(await key.patch(`/agents/${id}`, fields))
  const get = async (id: string) => ok(await key.get(`/agents/${id}`))
  const put = (id: string, stable_version: number, canary_version: number, canary_percent: number, more: Json = {}) =>
    key.put(`/agents/${id}/release`, { stable_version, canary_version, canary_percent, ...more })
  /** What a direct call is served: text and version. */
  const ask = async (id: string, body: Json = {}) => {
    const { output, agent_version } = ok(await key.post(`/agents/${id}/generate?wait=true`, { prompt: 'x', ...body }))
    return `${output.content} ${agent_version}`
  }
  const session = async (agent_id: string, actor?: string) =>
    ok(
      await key.post('/sessions', {
        agent_id,
        auto_generate: true,
        ...(actor && { actor: { external_id: actor, name: actor } }),
      }),
      201,
    )
  /** What a message of a session is answered. */
  const say = async (sessionId: string): Promise<string> => {
    const { reply, generation_id } = ok(
      await key.post(`/sessions/${sessionId}/messages?wait=true`, { message: 'hello' }),
      201,
    )
    const { agent_version } = ok(await key.get(`/generations/${generation_id}`))
    return `${reply.content} ${agent_version}`
  }
  const versions = async (id: string) => ok(await key.get(`/agents/${id}/versions`)).data
  return { key, double, answers, three, patch, get, put, ask, session, say, versions }
}

describe('releases of agents', function () {
  this.timeout(60_000)
  const app = forSuite(() => startAgentApp({ actions: ACTIONS }))
  let v: ReturnType<typeof verbs>

  before(async () => {
    v = verbs(app)
    await v.answers()
  })

  it('give an end user one version, in every session and process', async function () {
    this.timeout(180_000)
    const agent = await v.three()
    ok(await v.put(agent, 1, 2, 30))
    const actors = Array.from({ length: 200 }, (_, n) => `split-${n}`)
    const second = await runWorker(app.databaseUrl, {}, ['generation'])
    const seen = new Map<string, string>()
    const ids = new Map<string, string>()
    let canaryTurns = 0
    const say = async (session: string) => {
      const answer = await v.say(session)
      if (answer === 'two 2') canaryTurns++
      return answer
    }
    const each = async (some: readonly string[], work: (actor: string) => Promise<void>) => {
      const left = [...some]
      const lane = async () => {
        for (let actor = left.pop(); actor; actor = left.pop()) await work(actor)
      }
      await Promise.all(Array.from({ length: 16 }, lane))
    }
    try {
      await each(actors, async actor => {
        const { id, actor_id } = await v.session(agent, actor)
        ids.set(actor, actor_id)
        seen.set(actor, await say(id))
        if (Number(actor.slice(6)) % 4 === 0) assert.equal(await say(id), seen.get(actor), 'in the same session')
      })
      await each(actors.slice(0, 60), async actor => {
        const { id, actor_id } = await v.session(agent, actor)
        assert.equal(actor_id, ids.get(actor))
        assert.equal(await say(id), seen.get(actor), 'in another session')
      })
    } finally {
      await second.stop()
    }
    for (const [actor, answer] of seen) {
      const bucket = bucketOf(agent, ids.get(actor) as string)
      assert.equal(answer, bucket < 30 ? 'two 2' : 'one 1', `bucket ${bucket}`)
    }
    const share = [...seen.values()].filter(answer => answer === 'two 2').length / 2
    assert.ok(Math.abs(share - 30) <= 12, `${share} %`)
    const listed = ok(await v.key.get(`/generations?agent_id=${agent}&agent_version=2&limit=1`))
    assert.equal(listed.total, canaryTurns)

    // A raised share only moves end users to the canary.
    const stable = [...seen].filter(([, answer]) => answer === 'one 1').map(([actor]) => actor)
    const canary = [...seen].filter(([, answer]) => answer === 'two 2').map(([actor]) => actor)
    const next = stable.find(actor => bucketOf(agent, ids.get(actor) as string) < 60) as string
    ok(await v.put(agent, 1, 2, 60))
    for (const actor of [next, ...canary.slice(0, 5)])
      assert.equal(await v.say((await v.session(agent, actor)).id), 'two 2', actor)
  })

  it('go by the session where there is no end user, and by the conversation where there is no session', async () => {
    const agent = await v.three()
    ok(await v.put(agent, 1, 2, 50))
    const given = (key: string) => (bucketOf(agent, key) < 50 ? 'two 2' : 'one 1')
    for (let n = 0; n < 8; n++) {
      const { id } = await v.session(agent)
      assert.equal(await v.say(id), given(id))
      const owner = ok(await v.key.post('/actors', { name: 'owner' }), 201)
      const conversation = ok(await v.key.post('/conversations', { actor_id: owner.id }), 201)
      ok(await v.key.post(`/conversations/${conversation.id}/messages`, { role: 'user', message: 'x' }), 201)
      const turn = ok(await v.key.post(`/conversations/${conversation.id}/generate?wait=true`, { agent_id: agent }))
      assert.equal(turn.content, given(conversation.id).split(' ')[0])
    }
  })

  it('serve the stable version alone at 0, the canary alone at 100, and draw for anonymous callers', async () => {
    const agent = await v.three()
    ok(await v.put(agent, 1, 2, 0))
    for (let n = 0; n < 5; n++) assert.equal(await v.ask(agent), 'one 1')
    assert.equal(await v.say((await v.session(agent, 'zero')).id), 'one 1')
    ok(await v.put(agent, 1, 2, 100))
    for (let n = 0; n < 5; n++) assert.equal(await v.ask(agent), 'two 2')
    assert.equal(await v.say((await v.session(agent, 'zero')).id), 'two 2')
    ok(await v.put(agent, 1, 2, 50))
    const drawn = new Set(await Promise.all(Array.from({ length: 40 }, () => v.ask(agent))))
    assert.deepEqual([...drawn].sort(), ['one 1', 'two 2'])
  })

  it('leave the configuration of the agent a draft, whose fields about sessions and context still count', async () => {
    const agent = await v.three({ max_context_messages: 1 })
    const { version } = await v.get(agent)
    const released = ok(await v.put(agent, 1, 2, 100))
    assert.equal(released.version, version)
    assert.equal((await v.versions(agent)).length, 3)
    await v.patch(agent, { model: 'draft/m', max_context_messages: 2, single_session_per_actor: true })
    ok(await v.key.post(`/agents/${agent}/versions/3/restore`))
    assert.equal((await v.get(agent)).model, 'three/m')
    await v.patch(agent, { max_context_messages: 2, single_session_per_actor: true })
    const messages = ['a', 'b', 'c'].map(content => ({ role: 'user', content }))
    assert.equal(await v.ask(agent, { messages }), 'two 2')
    assert.equal((await v.double.requests('two')).at(-1)?.body.messages.length, 2)
    await v.session(agent, 'sole')
    const another = await v.key.post('/sessions', { agent_id: agent, actor: { external_id: 'sole', name: 'sole' } })
    assert.notEqual(another.status, 201)
    assert.deepEqual((await v.get(agent)).active_release, released.active_release)
  })

  it('end with the canary, whatever the draft says', async () => {
    const agent = await v.three({ instructions: 'Be brief.' })
    ok(await v.put(agent, 1, 2, 10))
    await v.patch(agent, { instructions: 'A draft.', max_steps: 4 })
    const promoted = ok(await v.key.post(`/agents/${agent}/release/promote`))
    assert.deepEqual(
      [promoted.version, promoted.model, promoted.instructions, promoted.max_steps, promoted.active_release],
      [5, 'two/m', 'Be brief.', null, null],
    )
    const [newest, draft, , canary] = await v.versions(agent)
    assert.deepEqual([newest.version, newest.label, newest.eval_run_id], [5, 'promoted from v2', null])
    assert.deepEqual(newest.config, canary.config)
    assert.equal(draft.config.instructions, 'A draft.')
    assert.equal(await v.ask(agent), 'two 5')
    refused(await v.key.post(`/agents/${agent}/release/promote`), 409, 'NO_ACTIVE_RELEASE')
    refused(await v.key.post(`/agents/${agent}/release/abort`), 409, 'NO_ACTIVE_RELEASE')
  })

  it('end with the stable version when they are aborted', async () => {
    const agent = await v.three()
    ok(await v.put(agent, 1, 3, 100))
    assert.equal(await v.ask(agent), 'three 3')
    const aborted = ok(await v.key.post(`/agents/${agent}/release/abort`))
    assert.deepEqual([aborted.version, aborted.model, aborted.active_release], [4, 'one/m', null])
    assert.equal((await v.versions(agent))[0].label, 'aborted to v1')
    assert.equal(await v.ask(agent), 'one 4')
  })

  it('make no version where the configuration is the live one already', async () => {
    const agent = await v.three()
    ok(await v.put(agent, 1, 3, 100))
    assert.equal(ok(await v.key.post(`/agents/${agent}/release/promote`)).version, 3)
    ok(await v.put(agent, 3, 1, 100))
    const aborted = ok(await v.key.post(`/agents/${agent}/release/abort`))
    assert.deepEqual([aborted.version, aborted.active_release], [3, null])
    assert.equal((await v.versions(agent)).length, 3)
    assert.equal(await v.ask(agent), 'three 3')
  })

  it('are promoted once by callers who come together', async () => {
    for (let round = 0; round < 5; round++) {
      const agent = await v.three()
      ok(await v.put(agent, 1, 2, 10))
      const replies = await Promise.all([1, 2].map(() => v.key.post(`/agents/${agent}/release/promote`)))
      const [won, lost] = replies.sort((a, b) => a.status - b.status)
      assert.equal(won.status, 200)
      refused(lost, 409, 'NO_ACTIVE_RELEASE')
      assert.equal((await v.versions(agent)).length, 4)
    }
  })

  it('end in one order with changes, restores and other releases that come meanwhile', async () => {
    for (let round = 0; round < 5; round++) {
      const agent = await v.three()
      ok(await v.put(agent, 1, 2, 10))
      const replies = await Promise.all([
        v.key.patch(`/agents/${agent}`, { name: 'meanwhile' }),
        v.key.post(`/agents/${agent}/release/promote`),
        v.put(agent, 2, 3, 20),
        v.key.post(`/agents/${agent}/versions/1/restore`),
        v.key.post(`/agents/${agent}/release/abort`),
      ])
      const outcome = replies.map(({ status }) => status)
      assert.ok(outcome.every(status => status === 200 || status === 409))
      const { version, active_release, name, model } = await v.get(agent)
      const versions = await v.versions(agent)
      assert.deepEqual(
        versions.map((each: Json) => each.version),
        Array.from({ length: version }, (_, n) => version - n),
      )
      assert.deepEqual([versions[0].config.name, versions[0].config.model], [name, model])
      // Two ends need two releases; with one of them refused, the release that came last is still there or was ended.
      const ends = [outcome[1], outcome[4]].filter(status => status === 200).length
      if (ends === 2) assert.equal(active_release, null)
      else if (active_release) assert.equal(active_release.canary_percent, 20)
    }
  })

  it('are refused with a value that is wrong, naming it', async () => {
    const agent = await v.three()
    refusedAt(await v.put(agent, 1, 1, 10), 'canary_version')
    refusedAt(await v.put(agent, 4, 1, 10), 'stable_version')
    refusedAt(await v.put(agent, 1, 4, 10), 'canary_version')
    for (const wrong of [101, -1, 1.5, '10', null])
      refusedAt(await v.put(agent, 1, 2, wrong as number), 'canary_percent')
    for (const wrong of [0, 1.5, '1', null, 2 ** 40]) {
      refusedAt(await v.put(agent, wrong as number, 2, 10), 'stable_version')
      refusedAt(await v.put(agent, 1, wrong as number, 10), 'canary_version')
    }
    for (const field of ['stable_version', 'canary_version', 'canary_percent'])
      refusedAt(await v.put(agent, 1, 2, 10, { [field]: undefined }), field)
    refusedAt(await v.put(agent, 1, 2, 10, { started_by: 'me' }), 'started_by')
    refused(await v.put(agent, 1, 2, 10, { expected_version: 2 }), 409, 'VERSION_CONFLICT')
    // No evals yet, so nothing can be a gate.
    for (const gate of ['eval_00000000000000000000000000', 'nonsense'])
      refusedAt(await v.put(agent, 1, 2, 10, { promotion_gate: gate }), 'promotion_gate')
    assert.equal((await v.get(agent)).active_release, null)
    assert.equal(ok(await v.put(agent, 1, 2, 10, { promotion_gate: null, expected_version: 3 })).version, 3)
  })

  it('name only versions of their agent', async () => {
    const agent = await app.agent()
    await v.three()
    refusedAt(await v.put(agent, 1, 2, 10), 'canary_version')
  })

  it('replace each other and say who started them', async () => {
    const agent = await v.three()
    const first = ok(await v.put(agent, 1, 2, 10)).active_release
    const owner = (await app.admin.get('/users/me')).body.id
    const { started_at, ...rest } = first
    assert.deepEqual(rest, {
      stable_version: 1,
      canary_version: 2,
      canary_percent: 10,
      promotion_gate: null,
      started_by: owner,
    })
    assert.equal(JSON.stringify((await v.get(agent)).active_release), JSON.stringify(first), 'keys keep their order')
    const second = ok(await v.put(agent, 2, 3, 100))
    assert.ok(second.active_release.started_at >= started_at)
    assert.equal(await v.ask(agent), 'three 3')
    const listed = ok(await v.key.get('/agents')).data.find((each: Json) => each.id === agent)
    assert.deepEqual(listed.active_release, second.active_release)
  })

  it('emit events with the release, and are audited', async () => {
    const agent = await v.three()
    const started = ok(await v.put(agent, 1, 2, 10))
    const promoted = ok(await v.key.post(`/agents/${agent}/release/promote`))
    const again = ok(await v.put(agent, 1, 2, 20))
    ok(await v.key.post(`/agents/${agent}/release/abort`))
    const events = ok(await v.key.get(`/events?resource_id=${agent}`)).data.slice(0, 4)
    const data = events.map(({ event, data }: Json) => [event, data.version, data.active_release, data.release])
    assert.deepEqual(data, [
      ['agents.release_aborted', 5, null, again.active_release],
      ['agents.release_started', 4, again.active_release, again.active_release],
      ['agents.release_promoted', 4, null, started.active_release],
      ['agents.release_started', 3, started.active_release, started.active_release],
    ])
    assert.equal(promoted.version, 4)
    const entries = (await app.admin.get(`/audit-log?resource_public_id=${agent}&action=agents:SetAgentRelease`)).body
      .data
    assert.deepEqual(
      entries.map(({ status, detail }: Json) => [status, detail.release.canary_percent, detail.version ?? null]),
      [
        [200, 20, 5],
        [200, 20, null],
        [200, 10, 4],
        [200, 10, null],
      ],
    )
  })

  it('are the business of who may set them', async () => {
    const agent = await v.three()
    const limited = async (...action: string[]) =>
      app.user(undefined, [
        { statement: [{ effect: 'Allow', action, resource: [`srn:${app.projectId}:agent:${agent}`] }] },
      ])
    const body = { stable_version: 1, canary_version: 2, canary_percent: 10 }
    const calls = (as: Client) => [
      as.put(`/agents/${agent}/release`, body),
      as.post(`/agents/${agent}/release/promote`),
      as.post(`/agents/${agent}/release/abort`),
    ]
    const editor = await limited('agents:UpdateAgent', 'agents:GetAgent', 'agents:RestoreAgentVersion')
    const before = await v.get(agent)
    for (const reply of await Promise.all(calls(editor))) refused(reply, 403, 'FORBIDDEN')
    assert.deepEqual(await v.get(agent), before)
    const stranger = (await app.project()).key
    for (const reply of await Promise.all(calls(stranger))) refused(reply, 404, 'RESOURCE_NOT_FOUND')
    const releaser = await limited('agents:SetAgentRelease')
    assert.equal((await releaser.put(`/agents/${agent}/release`, body)).status, 200)
    assert.equal((await releaser.post(`/agents/${agent}/release/promote`)).status, 200)
    assert.equal((await releaser.patch(`/agents/${agent}`, { name: 'x' })).status, 403)
  })

  it('keep what their versions name from being deleted', async () => {
    const other = ok(
      await v.key.post('/ai-providers', {
        name: 'other',
        provider: 'custom',
        default_model: 'one/m',
        base_url: `${app.double.url}/v1`,
      }),
      201,
    ).id
    const agent = await app.agent({ ai_provider_id: other })
    await v.patch(agent, { ai_provider_id: app.providerId })
    const remove = () => v.key.delete(`/ai-providers/${other}?force=true`)
    ok(await v.put(agent, 1, 2, 10))
    await v.patch(agent, { ai_provider_id: other, name: 'both' })
    const { counts, sample_ids } = refused(await remove(), 409, 'AI_PROVIDER_HAS_DEPENDENTS')
    assert.deepEqual([counts, sample_ids], [{ agents: 1 }, { agents: [agent] }])
    await v.patch(agent, { ai_provider_id: app.providerId })
    assert.deepEqual(refused(await remove(), 409, 'AI_PROVIDER_HAS_DEPENDENTS').counts, { agents: 1 })
    ok(await v.key.post(`/agents/${agent}/release/promote`))
    assert.equal((await remove()).status, 204)
    refusedAt(await v.put(agent, 1, 2, 10), 'stable_version', 'AI_PROVIDER_NOT_FOUND')
    assert.equal((await v.get(agent)).active_release, null)
  })

  describe('over model routes', () => {
    /** A route to a lane of the double, and its provider. */
    const newRoute = async (lane: string) => {
      const provider = { name: 'p', provider: 'custom', default_model: 'm', base_url: `${app.double.url}/v1` }
      const ai_provider_id = ok(await v.key.post('/ai-providers', provider), 201).id
      const targets = [{ ai_provider_id, model: `${lane}/m` }]
      return ok(await v.key.post('/model-routes', { name: `route ${++routes}`, targets }), 201).id as string
    }
    let routes = 0
    const setDefault = (default_model_route_id: string | null) =>
      app.admin.patch(`/projects/${app.projectId}`, { default_model_route_id })
    const pinned = () => ({ ai_provider_id: app.providerId, model_route_id: null, model: 'one/m' })
    const routed = (model_route_id: string | null) => ({ ai_provider_id: null, model_route_id, model: null })
    const remove = (route: string) => v.key.delete(`/model-routes/${route}?force=true`)

    it('send each turn where the version that is served sends it', async () => {
      const route = await newRoute('two')
      ok(await setDefault(await newRoute('three')))
      const agent = await app.agent(pinned())
      await v.patch(agent, routed(route))
      await v.patch(agent, routed(null))
      await v.patch(agent, { ...pinned(), name: 'draft' })
      const { id } = await v.session(agent, 'routed')
      const owner = ok(await v.key.post('/actors', { name: 'owner' }), 201)
      const conversation = ok(await v.key.post('/conversations', { actor_id: owner.id }), 201).id
      ok(await v.key.post(`/conversations/${conversation}/messages`, { role: 'user', message: 'x' }), 201)
      const turns = async () => {
        const direct = ok(await v.key.post(`/agents/${agent}/generate?wait=true`, { prompt: 'x' }))
        const record = ok(await v.key.get(`/generations/${direct.id}`))
        const generate = { agent_id: agent }
        const turn = ok(await v.key.post(`/conversations/${conversation}/generate?wait=true`, generate))
        return [
          `${record.output.content} ${record.agent_version}`,
          await v.say(id),
          turn.content,
          record.routing?.route_id,
        ]
      }
      ok(await v.put(agent, 1, 2, 100))
      assert.deepEqual(await turns(), ['two 2', 'two 2', 'two', route])
      ok(await v.put(agent, 1, 2, 0))
      assert.deepEqual(await turns(), ['one 1', 'one 1', 'one', undefined])
      ok(await v.put(agent, 2, 3, 100))
      const inherited = (await app.admin.get(`/projects/${app.projectId}`)).body.default_model_route_id
      assert.deepEqual(await turns(), ['three 3', 'three 3', 'three', inherited])
      // A separate model of the turn is allowed with a served provider alone, whatever the draft has.
      const named = (model: string) =>
        v.key.post(`/conversations/${conversation}/generate?wait=true`, { agent_id: agent, model })
      refusedAt(await named('one/m'), 'model')
      ok(await v.put(agent, 2, 1, 100))
      await v.patch(agent, routed(route))
      assert.equal(ok(await named('two/m')).content, 'two')
      const drawn = new Set<string>()
      ok(await v.put(agent, 1, 2, 50))
      for (const answer of await Promise.all(Array.from({ length: 40 }, () => v.ask(agent)))) drawn.add(answer)
      assert.deepEqual([...drawn].sort(), ['one 1', 'two 2'])
    })

    it('read the route of the version again with each step', async () => {
      const rules = [
        { when: { call: 1 }, reply: { tool_calls: [{ name: 'nothing', args: {} }] } },
        { reply: { text: 'stepped' } },
      ]
      await v.double.put('stepped', { rules })
      const route = await newRoute('stepped')
      const agent = await app.agent(routed(route))
      await v.patch(agent, pinned())
      ok(await v.put(agent, 2, 1, 100))
      assert.equal(await v.ask(agent), 'stepped 1')
      assert.equal((await v.double.requests('stepped')).length, 2)
    })

    it('keep a route that one of the versions names', async () => {
      const route = await newRoute('two')
      const agent = await app.agent(routed(route))
      await v.patch(agent, pinned())
      ok(await v.put(agent, 2, 1, 10))
      const { counts, sample_ids, forcible } = refused(await remove(route), 409, 'MODEL_ROUTE_HAS_DEPENDENTS')
      assert.deepEqual([counts, sample_ids, forcible], [{ agents: 1 }, { agents: [agent] }, false])
      await v.patch(agent, routed(route))
      assert.deepEqual(refused(await remove(route), 409, 'MODEL_ROUTE_HAS_DEPENDENTS').counts, { agents: 1 })
      ok(await v.key.post(`/agents/${agent}/release/abort`))
      assert.equal((await remove(route)).status, 204)
      refusedAt(await v.put(agent, 2, 1, 10), 'canary_version', 'MODEL_ROUTE_NOT_FOUND')
    })

    it('keep the default of the project while one of the versions goes by it', async () => {
      ok(await setDefault(await newRoute('three')))
      const agent = await app.agent(routed(null))
      await v.patch(agent, pinned())
      const cleared = async () => {
        const reply = await setDefault(null)
        return reply.status === 200 ? null : refused(reply, 409, 'PROJECT_DEFAULT_ROUTE_INHERITED')
      }
      const held = { count: 1, counts: { agent: 1 }, sample_ids: [agent] }
      for (const [stable, canary] of [
        [1, 2],
        [2, 1],
      ]) {
        ok(await v.put(agent, stable, canary, 10))
        assert.deepEqual(await cleared(), held)
        // Another default is for those who inherit it to go by.
        ok(await setDefault(await newRoute('two')))
      }
      await v.patch(agent, routed(null))
      assert.deepEqual(await cleared(), held, 'counted once')
      await v.patch(agent, pinned())
      ok(await v.key.post(`/agents/${agent}/release/promote`))
      assert.deepEqual(await cleared(), held)
      await v.patch(agent, pinned())
      assert.equal(await cleared(), null)
      refusedAt(await v.put(agent, 2, 1, 10), 'canary_version')
      refusedAt(await v.key.post(`/agents/${agent}/versions/1/restore`), 'ai_provider_id')
      ok(await setDefault(await newRoute('three')))
      ok(await v.put(agent, 1, 2, 10))
      assert.equal(ok(await v.key.post(`/agents/${agent}/release/abort`)).ai_provider_id, null)
      await v.patch(agent, pinned())
    })

    it('never lose the default to a clear that comes at the same moment', async () => {
      const route = await newRoute('three')
      ok(await setDefault(route))
      const agent = await app.agent(routed(null))
      await v.patch(agent, pinned())
      const gains = {
        release: () => v.put(agent, 2, 1, 10),
        restore: () => v.key.post(`/agents/${agent}/versions/1/restore`),
      }
      for (const [name, gain] of Object.entries(gains))
        for (let round = 0; round < 15; round++) {
          ok(await setDefault(route))
          const [cleared, gained] = await Promise.all([setDefault(null), gain()])
          const outcome = `${cleared.status} ${gained.status}`
          assert.ok(['200 400', '409 200'].includes(outcome), `${name}: ${outcome}`)
          if (gained.status !== 200) continue
          // An end takes what the release held: no clear gets in between.
          if (name === 'release') {
            const [again, ended] = await Promise.all([
              setDefault(null),
              v.key.post(`/agents/${agent}/release/${round % 2 ? 'promote' : 'abort'}`),
            ])
            assert.equal(ended.status, 200)
            assert.ok(round % 2 ? again.status === 409 : [200, 409].includes(again.status), `${again.status}`)
          }
          await v.patch(agent, pinned())
        }
      ok(await setDefault(null))
    })
  })

  it('never dangle when a delete of a provider races them', async () => {
    const agent = await app.agent()
    for (let round = 0; round < 20; round++) {
      const { id } = ok(
        await v.key.post('/ai-providers', {
          name: 'p',
          provider: 'custom',
          default_model: 'm',
          base_url: `${app.double.url}/v1`,
        }),
        201,
      )
      const named = await v.patch(agent, { ai_provider_id: id })
      const live = await v.patch(agent, { ai_provider_id: app.providerId })
      const [gone, released] = await Promise.all([
        v.key.delete(`/ai-providers/${id}`),
        v.put(agent, live.version, named.version, 10),
      ])
      assert.ok(
        ['204 400', '409 200'].includes(`${gone.status} ${released.status}`),
        `${gone.status} ${JSON.stringify(released.body)}`,
      )
      if (released.status === 200) ok(await v.key.post(`/agents/${agent}/release/abort`))
    }
  })

  it('are promoted only to what could be written today; going back is always possible', async () => {
    const agent = await app.agent({ trace_content_mode: 'full' })
    await v.patch(agent, { trace_content_mode: null })
    await v.patch(agent, { name: 'draft' })
    const { active_release } = ok(await v.put(agent, 2, 1, 10))
    const other = await app.agent({ trace_content_mode: 'full' })
    await v.patch(other, { trace_content_mode: null })
    ok(await v.put(other, 1, 2, 10))
    const setMode = async (trace_content_mode: string) =>
      ok(await app.admin.patch(`/projects/${app.projectId}`, { trace_content_mode }))
    await setMode('none')
    try {
      refusedAt(await v.key.post(`/agents/${agent}/release/promote`), 'trace_content_mode')
      refusedAt(await v.put(agent, 2, 1, 20), 'canary_version')
      assert.deepEqual((await v.get(agent)).active_release, active_release)
      assert.equal((await v.versions(agent)).length, 3)
      const back = ok(await v.key.post(`/agents/${other}/release/abort`))
      assert.deepEqual([back.trace_content_mode, back.active_release], ['full', null])
    } finally {
      await setMode('full')
    }
  })

  it('keep content or none as the version that is served says', async () => {
    const agent = await v.three()
    await v.patch(agent, { trace_content_mode: 'none' })
    await v.patch(agent, { trace_content_mode: null })
    ok(await v.put(agent, 1, 4, 100))
    const direct = ok(await v.key.post(`/agents/${agent}/generate?wait=true`, { prompt: 'x' }))
    const { id } = await v.session(agent, 'private')
    const said = ok(await v.key.post(`/sessions/${id}/messages?wait=true`, { message: 'hello' }), 201)
    for (const generation of [direct.id, said.generation_id]) {
      const record = ok(await v.key.get(`/generations/${generation}`))
      assert.deepEqual(
        [record.agent_version, record.output, record.content_redacted_by_principal_id],
        [4, null, 'zero_retention'],
      )
    }
    ok(await v.put(agent, 1, 4, 0))
    const open = ok(await v.key.post(`/agents/${agent}/generate?wait=true`, { prompt: 'x' }))
    assert.equal(ok(await v.key.get(`/generations/${open.id}`)).output.content, 'one')
  })

  it('are what streams are admitted by', async () => {
    const agent = await v.three()
    await v.patch(agent, { output_schema: { type: 'object' } })
    ok(await v.put(agent, 1, 4, 0))
    const stream = () => openStream(app, `/agents/${agent}/generate`, { prompt: 'x', stream: true })
    const [started, ...rest] = await readStream(await stream())
    assert.equal(started.data.agent_version, 1)
    assert.equal(rest.at(-1)?.data.agent_version, 1)
    ok(await v.put(agent, 1, 4, 100))
    const body = { prompt: 'x', stream: true }
    refused(await v.key.post(`/agents/${agent}/generate`, body), 400, 'OUTPUT_SCHEMA_STREAMING_UNSUPPORTED')
    const { id, conversation_id } = await v.session(agent, 'streams')
    ok(await v.key.post(`/conversations/${conversation_id}/messages`, { role: 'user', message: 'x' }), 201)
    for (const path of [`/sessions/${id}/generate`, `/conversations/${conversation_id}/generate`]) {
      const reply = await v.key.post(path, { stream: true, ...(path.startsWith('/c') && { agent_id: agent }) })
      refused(reply, 400, 'OUTPUT_SCHEMA_STREAMING_UNSUPPORTED')
    }
  })

  it('let a failed turn be retried as any turn is', async () => {
    await v.double.put('failing', { rules: [{ reply: { error: { status: 400 } } }] })
    const agent = await app.agent({ model: 'failing/m' })
    await v.patch(agent, { model: 'two/m' })
    const failed = await v.key.post(`/agents/${agent}/generate?wait=true`, { prompt: 'x' })
    ok(await v.put(agent, 1, 2, 0))
    const broken = await v.key.post(`/agents/${agent}/generate?wait=true`, { prompt: 'x' })
    assert.equal(failed.status, 200)
    const { generation_id } = refused(broken, 502, 'AI_PROVIDER_ERROR')
    assert.equal(ok(await v.key.get(`/generations/${generation_id}`)).agent_version, 1)
    ok(await v.put(agent, 1, 2, 100))
    const again = ok(await v.key.post(`/generations/${generation_id}/retry?wait=true`))
    assert.deepEqual([again.agent_version, again.output.content], [2, 'two'])
  })
})

describe('versions of turns', function () {
  this.timeout(60_000)
  const FAST = { GENERATION_LEASE_SECONDS: '2', GENERATION_SWEEP_SECONDS: '1' }
  let app: AgentApp
  let v: ReturnType<typeof verbs>
  const processes: TestProcess[] = []
  const worker = async () => {
    const made = await startProcess('worker', app.databaseUrl, FAST, ['generation'])
    processes.push(made)
    return made
  }
  const steady = steadyWorkers()
  /** A worker that comes to no harm. */
  const steadyWorker = () => steady.start(app.databaseUrl, FAST, ['generation'])

  beforeEach(async () => {
    app = await startAgentApp({ workers: [], actions: ACTIONS })
    v = verbs(app)
    await v.answers()
  })
  afterEach(async () => {
    await steady.stop()
    for (const each of processes.splice(0))
      if (each.child.exitCode === null && each.child.signalCode === null) await each.kill()
    await app.close()
  })
  const ended = (id: string) =>
    eventually(async () => {
      const { body } = await app.key.get(`/generations/${id}`)
      return body.status === 'completed' || body.status === 'failed' ? body : null
    })

  it('are given at admission to direct calls, at the start to turns that wait in a conversation', async () => {
    const agent = await v.three()
    const { id: plain } = await v.session(await v.three(), 'a')
    const { id: released } = await v.session(agent, 'a')
    ok(await v.put(agent, 1, 2, 100))
    const direct = ok(await v.key.post(`/agents/${agent}/generate`, { prompt: 'x' }), 202).generation_id
    const live = await app.agent({ model: 'one/m' })
    const unreleased = ok(await v.key.post(`/agents/${live}/generate`, { prompt: 'x' }), 202).generation_id
    const ask = async (id: string) =>
      ok(await v.key.post(`/sessions/${id}/messages`, { message: 'hello' }), 201).generation_id
    const [waiting, plainWaiting] = [await ask(released), await ask(plain)]
    for (const id of [direct, unreleased, waiting, plainWaiting]) {
      const record = ok(await v.key.get(`/generations/${id}`))
      assert.deepEqual([record.status, record.agent_version], ['pending', null])
    }
    ok(await v.put(agent, 3, 1, 0))
    await v.patch(live, { model: 'three/m' })
    await v.patch(ok(await v.key.get(`/sessions/${plain}`)).agent_id, { model: 'one/m' })
    await steadyWorker()
    const seen = async (id: string) => {
      const { output, agent_version } = await ended(id)
      return `${output.content} ${agent_version}`
    }
    assert.equal(await seen(direct), 'two 2')
    assert.equal(await seen(unreleased), 'one 1')
    assert.equal(await seen(waiting), 'three 3')
    assert.equal(await seen(plainWaiting), 'one 4')
  })

  it('fail a turn whose provider or route was deleted since it got them', async () => {
    const body = { name: 'p', provider: 'custom', default_model: 'one/m', base_url: `${app.double.url}/v1` }
    const provider = ok(await v.key.post('/ai-providers', body), 201).id
    const targets = [{ ai_provider_id: app.providerId, model: 'one/m' }]
    const route = ok(await v.key.post('/model-routes', { name: 'r', targets }), 201).id
    const left = async (binding: Json) => {
      const agent = await app.agent(binding)
      const turn = ok(await v.key.post(`/agents/${agent}/generate`, { prompt: 'x' }), 202).generation_id
      await v.patch(agent, { ai_provider_id: app.providerId, model_route_id: null })
      return turn as string
    }
    const turns = [
      await left({ ai_provider_id: provider }),
      await left({ ai_provider_id: null, model_route_id: route }),
    ]
    for (const path of [`/ai-providers/${provider}`, `/model-routes/${route}`])
      assert.equal((await v.key.delete(path)).status, 204)
    await steadyWorker()
    const records = await Promise.all(turns.map(ended))
    assert.deepEqual(
      records.map(({ status, error, agent_version }) => [status, error.code, agent_version]),
      [
        ['failed', 'AI_PROVIDER_NOT_FOUND', 1],
        ['failed', 'MODEL_ROUTE_NOT_FOUND', 1],
      ],
    )
  })

  it('are pinned for a turn that another worker continues', async () => {
    const rules = [{ when: { call: 1 }, reply: { text: 'lost', gate: 'resumed-gate' } }, { reply: { text: 'resumed' } }]
    await v.double.put('resumed', { rules })
    const agent = await app.agent({ model: 'resumed/m', instructions: 'First.' })
    const { id } = await v.session(agent, 'a')
    const first = await worker()
    const turn = ok(await v.key.post(`/sessions/${id}/messages`, { message: 'hello' }), 201).generation_id
    await eventually(async () => (await v.double.gate('resumed-gate'))?.waiting)
    await v.patch(agent, { model: 'two/m', instructions: 'Second.' })
    ok(await v.put(agent, 1, 2, 100))
    await first.kill()
    await steadyWorker()
    const record = await ended(turn)
    assert.deepEqual([record.agent_version, record.output.content], [1, 'resumed'])
    const requests = await v.double.requests('resumed')
    assert.deepEqual(
      requests.map(({ body }: Json) => body.messages[0].content),
      ['First.', 'First.'],
    )
  })
})

describe('statements of a turn', () => {
  it('are no more with a release, of routed versions too, than without one', async () => {
    const env = { GENERATION_SWEEP_SECONDS: '3600', CONVERSATION_SWEEP_SECONDS: '3600', SESSION_SWEEP_SECONDS: '3600' }
    const app = await startAgentApp({ inProcess: true, actions: ACTIONS, env })
    try {
      const v = verbs(app)
      await v.answers()
      const agent = await v.three()
      const { id } = await v.session(agent, 'a')
      const counted = async (work: () => Promise<unknown>) => {
        // Statements of polls and heartbeats are not the turn's.
        const tables = /\b(agents|served_agent|generations|traces|conversation_turns|model_\w+)\b/
        // The steps are moved to a file after the turn, sooner or later than its caller is answered.
        const flush = /^\s*(select tr\.id|select from traces|with written)/
        const own = () => app.statements.filter(text => tables.test(text) && !flush.test(text))
        const from = own().length
        await work()
        return own().length - from
      }
      const direct = () => v.key.post(`/agents/${agent}/generate?wait=true`, { prompt: 'x' })
      const message = () => v.key.post(`/sessions/${id}/messages?wait=true`, { message: 'hello' })
      // A process reads an agent until it has drawn both versions.
      const least = async (work: () => Promise<unknown>) => {
        const counts = []
        for (let n = 0; n < (work === direct ? 20 : 5); n++) counts.push(await counted(work))
        return Math.min(...counts)
      }
      const before = [await least(direct), await least(message)]
      ok(await v.put(agent, 1, 2, 50))
      assert.deepEqual([await least(direct), await least(message)], before)
      const targets = [{ ai_provider_id: app.providerId, model: 'two/m' }]
      const model_route_id = ok(await v.key.post('/model-routes', { name: 'r', targets }), 201).id
      await v.patch(agent, { ai_provider_id: null, model: null, model_route_id })
      ok(await v.put(agent, 1, 4, 100))
      assert.deepEqual([await least(direct), await least(message)], before, 'by a route')
    } finally {
      await app.close()
    }
  })
})

describe('gates of releases', () => {
  const app = forSuite(() => startAgentApp({ workers: [], actions: ACTIONS }))
  let v: ReturnType<typeof verbs>
  let dataset_id: string

  before(async () => {
    v = verbs(app)
    dataset_id = ok(await app.admin.post('/datasets', { project_id: app.projectId, name: 'asked' }), 201).id
  })

  const evalOf = async (agent_id: string): Promise<string> => {
    const scorers = [{ type: 'exact_match' }]
    const body = { project_id: app.projectId, name: agent_id, agent_id, dataset_id, scorers, pass_threshold: 1 }
    return ok(await app.admin.post('/evals', body), 201).id
  }
  /** A run of an eval that a version has passed. */
  const pass = async (eval_id: string, agent_id: string, version: number): Promise<string> => {
    const id = newId('evrun')
    await app.pool.query(sql.unsafe`
      insert into eval_runs (id, project_id, eval_id, eval_revision, agent_id, agent_version, scorers, status, passed,
        item_count, authority)
      values (${id}, ${app.projectId}, ${eval_id}, 1, ${agent_id}, ${version}, '[]', 'completed', true, 1, '{}')`)
    return id
  }
  const gated = async (canary = 2) => {
    const agent = await v.three()
    const gate = await evalOf(agent)
    ok(await v.put(agent, 1, canary, 10, { promotion_gate: gate }))
    return { agent, gate, passed: (version: number) => pass(gate, agent, version) }
  }

  it('are evals of the agent', async () => {
    const { gate } = await gated()
    refusedAt(await v.put(await v.three(), 1, 2, 10, { promotion_gate: gate }), 'promotion_gate')
  })

  it('hold a promotion until the canary has passed, never an abort', async () => {
    const { agent, gate, passed } = await gated()
    const promote = () => v.key.post(`/agents/${agent}/release/promote`)
    const unmet = { promotion_gate: gate, agent_version: 2 }
    assert.deepEqual(refused(await promote(), 409, 'PROMOTION_GATE_UNMET'), unmet)
    await passed(1)
    assert.deepEqual(refused(await promote(), 409, 'PROMOTION_GATE_UNMET'), unmet)
    assert.equal((await v.get(agent)).active_release.promotion_gate, gate)
    assert.equal((await v.versions(agent)).length, 3)
    const run = await passed(2)
    assert.equal(ok(await promote()).version, 4)
    const [newest, , canary] = await v.versions(agent)
    assert.deepEqual([newest.eval_run_id, canary.eval_run_id], [run, null])
    const second = await gated()
    assert.equal(ok(await v.key.post(`/agents/${second.agent}/release/abort`)).model, 'one/m')
  })

  it('are met no more once their eval is gone', async () => {
    const { agent, gate, passed } = await gated()
    await passed(2)
    ok(await app.admin.delete(`/evals/${gate}`), 204)
    refused(await v.key.post(`/agents/${agent}/release/promote`), 409, 'PROMOTION_GATE_UNMET')
  })

  it('note their run on the version that is live already', async () => {
    const { agent, gate, passed } = await gated(3)
    const run = await passed(3)
    assert.equal(ok(await v.key.post(`/agents/${agent}/release/promote`)).version, 3)
    assert.equal((await v.versions(agent))[0].eval_run_id, run)
    await passed(3)
    ok(await v.put(agent, 1, 3, 10, { promotion_gate: gate }))
    ok(await v.key.post(`/agents/${agent}/release/promote`))
    assert.equal((await v.versions(agent))[0].eval_run_id, run, 'written once')
  })

  it('are dropped by a release that names none', async () => {
    const { agent } = await gated()
    assert.equal(ok(await v.put(agent, 1, 2, 50)).active_release.promotion_gate, null)
    assert.equal(ok(await v.key.post(`/agents/${agent}/release/promote`)).version, 4)
  })
})
