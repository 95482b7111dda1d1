import assert from 'node:assert/strict'
import { flatten } from '#core/api/flatten.ts'
import { type Operation, operations, toolNameOf } from '#core/api/operation.ts'
import { resourceTypes } from '#core/api/resource-type.ts'
import { rawQuery } from '#core/db/sql.ts'
import { platformActions } from '#execution/tools/platform.ts'
import { startDouble } from '#local/double/server.ts'
import { tools as mcpTools } from '../mcp/support.ts'
import * as a2a from '../protocols/a2a-support.ts'
import { ThreadClient } from '../protocols/ag-ui-support.ts'
import { type Client, startApp } from '../support/app.ts'
import { createBody, type Described, describedOperations, type Ids, randomOf, withoutSharing } from '../support/fuzz.ts'
import { populate } from '../support/populate.ts'
import { bodyOf } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'

type Json = Record<string, any>

/** Operations of other gates than `policy` that definitions may call: their result is public or limited by the caller. */
const SAFE = [
  'list-event-registry',
  'list-permissions',
  'list-prices',
  'list-projects',
  'validate-formation',
  'validate-orchestration',
  'validate-playbook',
]
const REFUSED = /responded with 403 (FORBIDDEN|API_KEY_PROJECT_SCOPE)$/
const IDENTITY = { issuer: 'https://issuer.example.com', subject: 'victim' }
/** Required arguments that no path parameter and no create has. */
const ARGUMENTS: Record<string, Json> = {
  'compare-policy-versions': { from: '1', to: '1' },
  'clone-project': { name: 'a copy' },
  'put-prices': {
    prices: [
      {
        provider: 'custom',
        model: 'm',
        component: 'output_tokens',
        unit: 'token',
        unit_price: 1,
        effective_from: '2999-01-01',
      },
    ],
  },
  'set-user-policies': { policy_ids: [] },
  'simulate-policies': {
    user_id: 'user_00000000000000000000000000',
    action: 'secrets:GetSecret',
    resource: 'srn:*:secret:*',
  },
  'reset-user-password': { new_password: 'another fine password' },
  'change-own-password': { current_password: 'x', new_password: 'another fine password' },
  'create-user-identity': IDENTITY,
  'delete-user-identity': IDENTITY,
  'narrow-oauth-grant': { selection: { kind: 'read' } },
  'replace-policy': { document: { statement: [{ effect: 'Allow', action: ['*'], resource: ['*'] }] } },
  'update-policy': { document: { statement: [{ effect: 'Allow', action: ['*'], resource: ['*'] }] } },
}

/**
 * Every operation, as an action of a tenant's definition that an admin uses: it reads and writes nothing outside the project
 * and the permissions of its author, whatever the gate of the operation and the surface of the call.
 */
describe('operations called by definitions', function () {
  this.timeout(600_000)
  const double = forSuite(() => startDouble({}))
  const app = forSuite(() =>
    startApp({
      env: { ...a2a.ENV, AG_UI_MOUNT: 'true', OPENAI_MOUNT: 'true' },
      workers: ['generation', 'orchestration', 'trigger', 'evaluation'],
    }),
  )
  const admin = forSuite(() => app.admin)
  let tenant: Client
  let projectId: string
  /** Values of path parameters, of another project. */
  let foreign: Record<string, string>
  let described: Map<string, Described>
  let document: Json
  let gated: string[]
  let toolId: string
  let toolName: string
  let counter = 0
  const random = randomOf(7)
  const made = (path: string, body: object): Promise<any> =>
    bodyOf(tenant.post(path, { project_id: projectId, ...body }))

  before(async () => {
    document = withoutSharing((await app.anonymous.get('//openapi.json')).body)
    described = new Map(describedOperations(document).map(each => [each.id, each]))
    foreign = { ...(await populate(app)), user_id: (await bodyOf(admin.get('/users/me'))).id }
    projectId = (await bodyOf(admin.post('/projects', { name: 'tenant' }))).id
    tenant = await app.user(undefined, [
      { statement: [{ effect: 'Allow', action: ['*'], resource: [`srn:${projectId}:*:*`] }] },
    ])
    gated = [...platformActions()]
      .filter(([name, { gate }]) => gate !== 'policy' && !SAFE.includes(name))
      .map(([name]) => name)
    toolName = 'everything'
    const actions = [...platformActions().keys()]
    toolId = (await made('/tools', { name: toolName, type: 'platform', actions: actions.slice(0, 500) })).id
    assert.ok(actions.length <= 500, 'one tool has every action')
  })

  const inBatches = async <T>(all: readonly T[], run: (each: T) => Promise<void>) => {
    for (let at = 0; at < all.length; at += 8) await Promise.all(all.slice(at, at + 8).map(run))
  }

  /** Arguments that refer to rows of another project, or are the input of the operation. */
  function argumentsOf(operation: Operation, project_id: string | null): Json {
    const { id, shape, body, consumes, path } = operation
    const fields = flatten(operation)?.fields ?? new Map()
    const params = Object.fromEntries([...path.matchAll(/\{(\w+)\}/g)].map(([, name]) => [name, foreign[name] ?? 'x']))
    const isMade = body && shape === 'create' && consumes.includes('application/json')
    const given = isMade ? createBody(described.get(id) as Described, random, foreignIds(), document) : {}
    const { project_id: _own, ...rest } = { ...given, ...ARGUMENTS[toolNameOf(id)] }
    return { ...rest, ...(project_id !== null && fields.has('project_id') ? { project_id } : {}), ...params }
  }
  /** The rows of the other project, by the prefix of their kind. */
  const foreignIds = (): Ids => {
    const own = operations.all().flatMap(({ param, kind }) => (param && kind ? [[kind.prefix, [foreign[param]]]] : []))
    return { own: Object.fromEntries(own), foreign: {}, messages: [] }
  }

  /** What no definition of the tenant may change. */
  const outside = () =>
    app.pool.anyFirst(
      rawQuery(
        `select md5(string_agg(t::text, ',' order by t::text)) from (
          select to_jsonb(u) - 'last_sign_in_at' as t from users u
          union all select to_jsonb(p) from policies p union all select to_jsonb(p) from user_policies p
          union all select to_jsonb(p) from projects p where p.id <> $1
          union all select to_jsonb(k) - 'last_used_at' from project_keys k
          union all select to_jsonb(g) - 'last_used_at' from oauth_grants g
          union all select to_jsonb(x) from prices x union all select to_jsonb(i) from user_identities i
        ) all_rows`,
        [projectId],
      ),
    )

  it('are refused unless their gate covers the author and the project', () => {
    const open = operations.all().filter(({ gate, byDefinitions }) => gate !== 'policy' && byDefinitions)
    assert.deepEqual(open.map(({ id }) => toolNameOf(id)).sort(), SAFE)
    assert.ok(gated.length > 30, String(gated.length))
  })

  it('reach nothing of another project and nothing of the starter through a tool', async () => {
    const before = await outside()
    const leaks: string[] = []
    await inBatches([...platformActions()], async ([action, operation]) => {
      const isGated = gated.includes(action)
      for (const project of [foreign.project_id, null]) {
        const input = argumentsOf(operation, project)
        const { status, body } = await admin.post(`/tools/${toolId}/call`, { action, input })
        const refusal = body.error?.meta?.tool_status_code
        const text = JSON.stringify(body)
        if (isGated && refusal !== 403) leaks.push(`${action}: ${status} ${text.slice(0, 300)}`)
        if (status >= 300) continue
        for (const [, found] of text.matchAll(/"project_id":"(proj_\w+)"/g))
          if (found !== projectId) leaks.push(`${action} returns a row of ${found}`)
      }
    })
    assert.deepEqual(leaks, [])
    assert.deepEqual(await outside(), before)
  })

  it('are refused as steps of pipelines and nodes of runs', async () => {
    const before = await outside()
    const answered: string[] = []
    await inBatches(gated, async action => {
      const input = argumentsOf(platformActions().get(action) as Operation, null)
      const steps = [{ id: 'a', tool_id: toolId, action, input }]
      const pipeline = await made('/tools', { name: `p-${action}`, type: 'pipeline', pipeline: { steps } })
      const called = await admin.post(`/tools/${pipeline.id}/call`, {})
      if (!REFUSED.test(called.body.error?.message)) answered.push(`${action}: ${called.body.error?.message}`)
      const nodes = [{ id: 'a', type: 'tool', tool_id: toolId, operation_id: action, input_mapping: input }]
      const graph = await made('/orchestrations', { name: `g-${action}`, nodes, edges: [] })
      const run = await bodyOf(admin.post('/orchestration-runs', { orchestration_id: graph.id, wait: true }))
      if (!REFUSED.test(run.error?.message)) answered.push(`${action} in a run: ${run.error?.message}`)
    })
    assert.deepEqual(answered, [])
    assert.deepEqual(await outside(), before)
  })

  /** Ways to start a turn as an admin. */
  const TURNS: Record<string, (agentId: string, prompt: string) => Promise<unknown>> = {
    REST: (id, prompt) => bodyOf(admin.post(`/agents/${id}/generate?wait=true`, { prompt })),
    MCP: (agent_id, prompt) =>
      mcpTools(app.url, admin.token as string)('create-agent-generation', { agent_id, prompt, wait: true }),
    'the OpenAI mount': (model, content) =>
      fetch(`${app.url}/openai/v1/chat/completions`, {
        method: 'POST',
        headers: { 'content-type': 'application/json', authorization: `Bearer ${admin.token}` },
        body: JSON.stringify({ model, messages: [{ role: 'user', content }] }),
      }).then(response => response.text()),
    A2A: async (id, prompt) => (await a2a.connect(app, admin, id)).sendMessage(a2a.params(prompt)),
    'AG-UI': (agentId, prompt) => new ThreadClient({ url: app.url, token: admin.token, agentId }).say(prompt),
    'a trigger': async (target_id, message) => {
      const fields = { name: 'starts', type: 'manual', target_type: 'agent', target_id, input: { message } }
      const { id } = await bodyOf(admin.post('/triggers', { project_id: projectId, ...fields }))
      return bodyOf(admin.post(`/triggers/${id}/fire`, { wait: true }))
    },
  }
  for (const [surface, start] of Object.entries(TURNS))
    it(`are refused in a turn that an admin starts by ${surface}`, async () => {
      const provider = {
        name: `d${++counter}`,
        provider: 'custom',
        default_model: 'double-1',
        base_url: `${double.url}/v1`,
      }
      const { id: ai_provider_id } = await made('/ai-providers', provider)
      const tool_bindings = [{ tool_id: toolId }]
      const { id } = await made('/agents', {
        name: `a${counter}`,
        ai_provider_id,
        tool_bindings,
        a2a: { enabled: true },
      })
      const called = ['get-me', 'get-user', 'list-authored-definitions', 'list-user-policies', 'create-project-key']
      const tool_calls = called.map(action => ({
        name: `${toolName}_${action}`,
        args: argumentsOf(platformActions().get(action) as Operation, null),
      }))
      const before = await outside()
      await start(id, `@double ${JSON.stringify([{ tool_calls }, { text: 'done' }])}`)
      const { data } = await bodyOf(admin.get(`/generations?project_id=${projectId}&agent_id=${id}`))
      assert.equal(data.length, 1, JSON.stringify(data))
      const { steps } = await bodyOf(admin.get(`/generations/${data[0].id}/transcript`))
      assert.deepEqual(
        steps[0].tool_results.map(({ error }: Json) => error?.message),
        called.map(action => `${action} responded with 403 FORBIDDEN`),
        JSON.stringify(steps),
      )
      assert.deepEqual(await outside(), before)
    })

  it('are refused for the resources of a template that a definition deploys', async () => {
    const types = resourceTypes.all().filter(each => operations.get(each.create).gate !== 'policy')
    assert.deepEqual(types.map(({ name }) => name).sort(), ['api_key', 'policy'])
    const before = await outside()
    const properties: Record<string, Json> = {
      api_key: { name: 'key' },
      policy: { document: { statement: [{ effect: 'Allow', action: ['*'], resource: ['*'] }] } },
    }
    for (const { name } of types) {
      const template = { resources: { It: { type: name, properties: properties[name] } } }
      const input = { name: `form-${name}`, template }
      const { body } = await admin.post(`/tools/${toolId}/call`, { action: 'create-formation', input })
      assert.equal(body.error?.meta?.tool_status_code, 403, JSON.stringify(body))
    }
    assert.deepEqual(await outside(), before)
  })
})
