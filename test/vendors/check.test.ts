import assert from 'node:assert/strict'
import { voidStatement } from '#core/db/sql.ts'
import { User } from '../cli/support.ts'
import { type Client, client, eventually, startApp, type TestApp } from '../support/app.ts'
import { runWeb } from '../support/hosts.ts'
import { GARBAGE_FLAGS, startProcess, type TestProcess } from '../support/processes.ts'
import { postedBy } from '../support/replies.ts'
import type { Reply } from '../support/vendors/plan.ts'
import { laneOf, type Profile, processSettings, profiles, providerFields } from '../support/vendors/profiles.ts'
import type { Call } from '../support/vendors/rules.ts'
import { type Simulators, startSimulators } from '../support/vendors/server.ts'

type Json = Record<string, any>

const WEATHER = { name: 'get_weather', args: { city: 'Paris' } }

/** Answers the calls of a check as a capable model does. */
function capable({ body }: Pick<Call, 'body'>): Reply {
  const text = JSON.stringify(body)
  if (text.includes('capital of France'))
    return /"name":"json"/.test(JSON.stringify(body.tools ?? body.toolConfig ?? null))
      ? { tool_calls: [{ name: 'json', args: { city: 'Paris' } }] }
      : { text: '{"city":"Paris"}' }
  if (text.includes('at the same time')) return { tool_calls: [WEATHER, { ...WEATHER, args: { city: 'Rome' } }] }
  if (text.includes('sunny, 24')) return { text: 'It is sunny.' }
  if (text.includes('Use get_weather')) return { reasoning: 'I look it up.', tool_calls: [WEATHER] }
  if (text.includes('Use find_person')) return { tool_calls: [{ name: '*', args: { id: 'p7' } }] }
  if (text.includes('colour is the square')) return { text: 'Red' }
  if (text.includes('does the page name')) return { text: 'heron' }
  return { text: 'hello' }
}

/** Runs work on all items, some at a time: each loads packages of a vendor. */
async function inGroups<T>(items: readonly T[], run: (item: T) => Promise<void>): Promise<void> {
  for (let at = 0; at < items.length; at += 4) await Promise.all(items.slice(at, at + 4).map(run))
}

describe('checks of providers by capabilities', function () {
  this.timeout(60_000)
  let app: TestApp
  let simulators: Simulators
  let key: Client
  let web: TestProcess
  /** Returns a key that may only do this with providers. */
  let narrow: (actions: string[]) => Promise<Client>
  const made = (path: string, body: object): Promise<Json> => postedBy(key, path, body)
  const providerOf = async (profile: Profile, fields: object = {}, lane = laneOf(profile)): Promise<string> => {
    const secret = await made('/secrets', { name: lane, value: lane })
    const made_ = await made('/ai-providers', {
      ...providerFields(profile, simulators.url),
      secret_id: secret.id,
      ...fields,
    })
    return made_.id
  }

  before(async () => {
    ;[simulators, app] = await Promise.all([startSimulators(), startApp()])
    const { env, flags } = processSettings(simulators.url)
    web = await startProcess('web', app.databaseUrl, env, [], [...GARBAGE_FLAGS, ...flags])
    const project = await app.projectWith(['agents:*', 'ai-providers:*', 'generations:*', 'secrets:*', 'usage:*'])
    key = client(web.url, project.key.token)
    narrow = async actions => {
      const statement = [{ effect: 'Allow', action: actions, resource: [`srn:${project.id}:ai_provider:*`] }]
      const policy = await app.admin.post('/policies', { document: { statement } })
      const made = await app.admin.post('/project-keys', { project_id: project.id, policy_ids: [policy.body.id] })
      return client(web.url, made.body.secret)
    }
  })
  after(async () => {
    await web?.kill('SIGTERM')
    await Promise.all([app?.close(), simulators?.close()])
  })

  const check = (id: string, body: object = { matrix: true }, by = key) => by.post(`/ai-providers/${id}/check`, body)
  const lineOf = ({ checks }: Json, name: string): Json => checks.find(({ capability }: Json) => capability === name)
  /** Capabilities with another result than works. */
  const others = ({ checks }: Json): string[] =>
    checks
      .filter(({ result }: Json) => result !== 'works')
      .map(({ capability, result }: Json) => `${capability} ${result}`)
  const profileOf = async (id: string): Promise<Json> => (await key.get(`/ai-providers/${id}/profile`)).body
  const named = (name: string) => profiles.find(each => each.name === name)!

  /** Results other than works; simulators cache only what requests mark. */
  const RESULTS: Record<string, readonly string[]> = {
    'openai responses': ['caching ignored', 'temperature ignored'],
    'openai chat': ['caching ignored', 'temperature ignored'],
    azure: ['caching ignored', 'temperature degraded'],
    'azure chat': ['caching ignored', 'temperature degraded'],
    anthropic: [],
    'bedrock claude': [],
    vertex: ['caching ignored', 'listing not_offered'],
    'bedrock other': ['tools ignored', 'caching ignored'],
    xai: ['pdf not_offered', 'caching ignored'],
    groq: ['pdf not_offered', 'caching ignored'],
    ollama: ['caching ignored', 'listing not_offered'],
    gateway: ['caching ignored', 'temperature degraded'],
    'custom openai': ['caching ignored', 'temperature degraded'],
    'custom deepseek': ['structured_output degraded', 'caching ignored'],
    'custom kimi': ['caching ignored', 'temperature degraded'],
    'custom litellm': ['caching ignored', 'temperature degraded'],
  }

  it('say of each kind of provider what works, is degraded, ignored or not offered', async () => {
    await inGroups(profiles, async profile => {
      simulators.plan(laneOf(profile), capable)
      const id = await providerOf(profile)
      const { status, body } = await check(id)
      assert.equal(status, 200, JSON.stringify(body))
      const { checks, ok, proposed_dialect } = body
      assert.deepEqual(others(body), RESULTS[profile.name] ?? ['caching ignored'], profile.name)
      assert.deepEqual([ok, checks.length, proposed_dialect], [true, 13, null])
      const { last_check, findings } = await profileOf(id)
      assert.deepEqual(last_check.checks, checks)
      const degraded = others(body).includes('temperature degraded')
      assert.equal(
        findings.some(({ finding }: Json) => finding === 'temperature'),
        degraded,
      )
      assert.deepEqual(
        findings.filter(({ expires_at, found_by }: Json) => expires_at !== null || found_by !== 'check'),
        [],
      )
    })
  })

  it('propose the dialect of an endpoint, and set none', async () => {
    const dialects = profiles.filter(({ name }) => name.startsWith('custom ')).map(profile => profile.config!.dialect)
    await inGroups(dialects, async dialect => {
      const lane = `dialect-of-${dialect}`
      const id = await providerOf(named(`custom ${dialect}`), { config: { headers: {} } }, lane)
      simulators.plan(lane, capable)
      const { body } = await check(id)
      assert.equal(body.proposed_dialect, dialect === 'openai' ? null : dialect)
      assert.deepEqual((await key.get(`/ai-providers/${id}`)).body.config, { headers: {} })
    })
  })

  /** A model that refuses many things, with the credential in its text. */
  const refusing =
    (lane: string) =>
    (call: Call): Reply => {
      const text = JSON.stringify(call.body)
      const refuse = (message: string) => ({ error: { status: 400, message: `${message} for key ${lane}` } })
      if (call.stream && !call.body.tools) return refuse("'stream' is not supported")
      if (call.body.tools && text.includes('find_person')) return refuse('tool schemas are not accepted')
      if (call.body.response_format) return refuse('response_format is not accepted')
      if (text.includes('image_url')) return refuse('this model takes no images')
      if (text.includes('get_weather') && !text.includes('at the same time')) return { text: 'I cannot call tools' }
      if (text.includes('at the same time')) return { tool_calls: [WEATHER] }
      if (text.includes('does the page name')) return { text: 'I see no page' }
      return { text: 'hello', usage: null }
    }

  it("quote the vendor's refusals without its credential", async () => {
    const lane = 'a-key-that-refuses-nearly-everything'
    const id = await providerOf(named('custom mistral'), {}, lane)
    simulators.plan(lane, refusing(lane))
    const { body } = await check(id)
    assert.deepEqual(others(body), [
      'stream degraded',
      'tools ignored',
      'parallel_calls ignored',
      'structured_output refused',
      'tool_schema refused',
      'image refused',
      'pdf ignored',
      'caching ignored',
      'usage degraded',
    ])
    assert.match(lineOf(body, 'image').vendor_message, /400: this model takes no images for key \*\*\*/)
    const all = JSON.stringify([body, await profileOf(id)])
    assert.ok(!all.includes(lane), 'a credential is shown')
    assert.ok((await profileOf(id)).findings.some(({ finding }: Json) => finding === 'stream'))
  })

  it('end after the first call if the credential is refused', async () => {
    const lane = 'a-key-that-is-not-known'
    const id = await providerOf(named('anthropic'), {}, lane)
    simulators.plan(lane, {
      error: { status: 401, type: 'authentication_error', message: `invalid x-api-key ${lane}` },
    })
    const { body } = await check(id)
    assert.deepEqual([body.ok, body.error.code, simulators.calls(lane).length], [false, 'AI_PROVIDER_ERROR', 1])
    assert.match(lineOf(body, 'plain').vendor_message, /401: invalid x-api-key \*\*\*/)
    assert.equal(lineOf(body, 'image').note, 'not called: the plain call was refused')
  })

  it('end for a vendor that is silent, and hold no connection to the database meanwhile', async () => {
    const lanes = ['silent-1', 'silent-2', 'silent-3', 'silent-4']
    const silent = await Promise.all(lanes.map(lane => providerOf(named('custom mistral'), {}, lane)))
    for (const lane of lanes) simulators.plan(lane, call => ({ ...capable(call), delay_ms: 60_000 }))
    const small = await runWeb(app.databaseUrl, { MODEL_CALL_TIMEOUT_MS: '1500', DATABASE_POOL_MAX: '2' })
    const other = client(small.url, key.token)
    const checks = silent.map(id => check(id, { matrix: true }, other))
    await eventually(async () => lanes.every(lane => simulators.calls(lane).length > 0))
    // The process has two connections, and four checks.
    assert.equal((await other.get(`/ai-providers/${silent[0]}`)).status, 200)
    for (const { body } of await Promise.all(checks)) {
      assert.equal(lineOf(body, 'plain').result, 'refused')
      assert.match(lineOf(body, 'plain').note, /did not respond within 1500 ms/)
      assert.equal(lineOf(body, 'listing').result, 'works')
    }
    await small.stop()
  })

  it('require the right to change the provider, and count as usage', async () => {
    const lane = 'metered'
    const id = await providerOf(named('custom mistral'), {}, lane)
    simulators.plan(lane, capable)
    const checker = await narrow(['ai-providers:CheckAiProvider'])
    const before = simulators.calls(lane).length
    assert.equal((await check(id, { matrix: true }, checker)).status, 403)
    assert.equal(simulators.calls(lane).length, before)
    assert.equal((await check(id, {}, checker)).body.checks, undefined)
    assert.equal((await checker.get(`/ai-providers/${id}/profile`)).status, 403)
    const estimate = (await checker.post(`/ai-providers/${id}/estimate-check`, { matrix: true })).body
    const writer = await narrow(['ai-providers:CheckAiProvider', 'ai-providers:UpdateAiProvider'])
    simulators.plan(lane, capable)
    assert.equal((await check(id, { matrix: true }, writer)).status, 200)
    const calls = simulators.calls(lane).length
    assert.equal(estimate.calls, calls)
    const metered = () => key.get(`/usage/events?ai_provider_id=${id}`)
    // One for the check without a matrix.
    await eventually(async () => (await metered()).body.total === calls + 1)
    const tokens = (await metered()).body.data.flatMap(({ components }: Json) =>
      components.filter(({ component }: Json) => component === 'input_tokens').map(({ quantity }: Json) => quantity),
    )
    const sum = tokens.reduce((total: number, each: number) => total + each, 0)
    assert.ok(
      sum / estimate.input_tokens > 0.4 && sum / estimate.input_tokens < 2.5,
      `${sum} of ${estimate.input_tokens}`,
    )
    const price = {
      prices: [
        {
          model: 'mistral-large-latest',
          component: 'input_tokens',
          unit: 'token',
          unit_price: 0.001,
          effective_from: '2026-01-01',
        },
      ],
    }
    assert.equal((await key.put(`/ai-providers/${id}/prices`, price)).status, 200)
    const priced = await eventually(async () => {
      const { cost_usd } = (await key.post(`/ai-providers/${id}/estimate-check`, { matrix: true })).body
      return cost_usd !== null && cost_usd
    })
    assert.equal(priced, estimate.input_tokens / 1000)
  })

  it('show their cost on the command line before they call', async () => {
    const lane = 'command-line'
    const id = await providerOf(named('custom mistral'), {}, lane)
    simulators.plan(lane, capable)
    const user = new User(web.url, key.token)
    const unasked = await user.run(['providers', 'check', id, '--matrix'])
    assert.notEqual(unasked.code, 0)
    assert.match(unasked.stderr, /13 calls of mistral-large-latest, about \d+ input and \d+ output tokens/)
    const dry = await user.run(['ai-providers', 'check', id, '--matrix', '--dry-run', '--json'])
    assert.equal(JSON.parse(dry.stdout).calls, 13)
    assert.equal(simulators.calls(lane).length, 0)
    const { code, stdout, stderr } = await user.run(['providers', 'check', id, '--matrix', '--yes', '--json'])
    assert.equal(code, 0, stderr)
    assert.deepEqual(others(JSON.parse(stdout)), ['caching ignored'])
    assert.match(stderr, /13 calls/)
  })

  describe('and their findings', () => {
    const refused = (lane: string) => simulators.calls(lane).map(({ body }) => body.temperature !== undefined)
    let agent: string
    let id: string
    let worker: TestProcess | undefined
    const lane = 'findings'

    const startWorker = async () => {
      worker = await startProcess('worker', app.databaseUrl, {}, ['generation', 'snapshot'], GARBAGE_FLAGS)
    }
    const turn = async (): Promise<boolean[]> => {
      simulators.plan(lane, { text: 'fine' })
      const { body } = await key.post(`/agents/${agent}/generate?wait=true`, { prompt: 'Hello' })
      assert.equal(body.status, 'completed', JSON.stringify(body))
      return refused(lane)
    }
    const ageFindings = () =>
      app.pool.query(voidStatement`
        update ai_providers set profile = replace(profile::text, extract(year from now())::text || '-', '2020-')::jsonb where id = ${id}`)

    before(async () => {
      id = await providerOf(named('custom kimi'), {}, lane)
      agent = (await made('/agents', { name: 'agent', ai_provider_id: id, temperature: 0.2 })).id
      await startWorker()
    })
    after(() => worker?.kill('SIGTERM'))

    it('apply to turns too, hold in other processes, and end after a day', async () => {
      assert.deepEqual(await turn(), [true, false])
      const [finding] = await eventually(async () => {
        const { findings } = await profileOf(id)
        return findings.length > 0 && findings
      })
      const { model, finding: setting, found_by, found_at, expires_at } = finding
      assert.deepEqual([model, setting, found_by], ['kimi-k2.6', 'temperature', 'call'])
      assert.equal(Date.parse(expires_at) - Date.parse(found_at), 86_400_000)
      assert.deepEqual(await turn(), [false])
      await worker!.kill('SIGKILL')
      await startWorker()
      assert.deepEqual(await turn(), [false])
      await ageFindings()
      assert.deepEqual((await profileOf(id)).findings, [])
      assert.deepEqual(await turn(), [true, false])
    })

    it('are dropped in all processes by a reset and by a change of their provider', async () => {
      await turn()
      assert.equal((await key.delete(`/ai-providers/${id}/profile`)).status, 204)
      assert.deepEqual(await profileOf(id), { findings: [], last_check: null })
      assert.deepEqual(await turn(), [true, false])
      await eventually(async () => (await profileOf(id)).findings.length === 1)
      await key.patch(`/ai-providers/${id}`, { name: 'renamed' })
      assert.deepEqual(await turn(), [false])
      for (const change of [{ default_model: 'kimi-k3' }, { config: { dialect: 'kimi', headers: {} } }]) {
        assert.equal((await profileOf(id)).findings.length, 1)
        await key.patch(`/ai-providers/${id}`, change)
        assert.deepEqual(await profileOf(id), { findings: [], last_check: null })
        await made(`/agents/${agent}/adopt`, {})
        await turn()
        await eventually(async () => (await profileOf(id)).findings.length === 1)
      }
    })

    it('are replaced by the findings of the next check of the model', async () => {
      await turn()
      simulators.plan(lane, capable)
      assert.equal((await check(id)).status, 200)
      const { findings, last_check } = await profileOf(id)
      assert.ok(findings.every(({ found_by, expires_at }: Json) => found_by === 'check' && expires_at === null))
      assert.equal(last_check.model, 'kimi-k3')
    })
  })
})
