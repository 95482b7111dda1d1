import assert from 'node:assert/strict'
import { eventually, startApp } from '../support/app.ts'
import { runWorker } from '../support/hosts.ts'
import { startProcess } from '../support/processes.ts'
import { createdBy } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'
import { active, physical, planned, updated } from './support.ts'

const provider = { type: 'ai_provider', properties: { name: 'Demo', provider: 'ollama', default_model: 'demo' } }

/** An agent whose tool opens tasks of a workflow in which the agent works. */
const cycle = (name: string) => ({
  resources: {
    Agent: {
      type: 'agent',
      properties: {
        name,
        ai_provider_id: { ref: 'Provider' },
        tool_bindings: [{ tool_id: { ref: 'Tool' } }],
      },
    },
    Tool: {
      type: 'tool',
      properties: {
        name: 'open_task',
        type: 'platform',
        actions: ['create-task'],
        preset_parameters: { workflow_id: { ref: 'Workflow' } },
      },
    },
    Workflow: {
      type: 'workflow',
      properties: {
        name: 'Requests',
        states: [
          {
            name: 'new',
            initial: true,
            on_enter: {
              dispatch: { kind: 'agent', agent_id: { ref: 'Agent' }, input_mapping: { prompt: 'Work on it' } },
            },
          },
          { name: 'done', terminal: true },
        ],
        transitions: [{ name: 'finish', from: ['new'], to: 'done' }],
      },
    },
    Provider: provider,
  },
})

const FAST = { WORKER_HEARTBEAT_INTERVAL_MS: '200', SHUTDOWN_GRACE_MS: '500' }

describe('formations with cycles', function () {
  this.timeout(240_000)
  const app = forSuite(() => startApp({ workers: ['orchestration'] }))

  const eventsOf = async (key: any, id: string): Promise<string[]> => {
    const { data } = (await key.get(`/formations/${id}/events`)).body
    return data.at(-1).events.map(({ action, logical_id, status }: any) => `${action} ${logical_id} ${status}`)
  }
  /** Fails unless the three resources of a formation refer to each other. */
  const requireCycle = async (key: any, formation: any, names = ['Agent', 'Tool', 'Workflow']) => {
    const [agent, tool, workflow] = names.map(name => physical(formation, name))
    const read = async (path: string) => (await key.get(path)).body
    assert.equal((await read(`/agents/${agent}`)).tool_bindings[0].tool_id, tool)
    assert.equal((await read(`/tools/${tool}`)).preset_parameters.workflow_id, workflow)
    assert.equal((await read(`/workflows/${workflow}`)).states[0].on_enter.dispatch.agent_id, agent)
    return { agent, tool, workflow }
  }

  it('create the resources, then set a property of one', async () => {
    const { key } = await app.project()
    const template = cycle('Support')
    assert.deepEqual((await createdBy(key, '/formations/validate', { template }, 200)).errors, [])
    assert.deepEqual(await planned(key, { template }), [
      ['Provider', 'create'],
      ['Agent', 'create'],
      ['Workflow', 'create'],
      ['Tool', 'create'],
    ])
    const made = await active(key, template)
    await requireCycle(key, made)
    assert.deepEqual(await eventsOf(key, made.id), [
      'create Provider succeeded',
      'create Agent succeeded',
      'create Workflow succeeded',
      'create Tool succeeded',
      'update Agent succeeded',
    ])
    assert.ok(made.resources.every(({ status }: any) => status === 'created'))
    const nothing = await planned(key, { template, formation_id: made.id })
    assert.deepEqual(new Set(nothing.map(([, action]) => action)), new Set(['no-op']))
    await updated(key, made, { template })
    assert.deepEqual(
      (await eventsOf(key, made.id)).toSorted(),
      ['Agent', 'Provider', 'Tool', 'Workflow'].map(name => `no-op ${name} succeeded`),
    )
  })

  it('plan and repair drift of the property, and point it at a new resource', async () => {
    const { key } = await app.project()
    const template = cycle('Support')
    const made = await active(key, template)
    const { agent, tool } = await requireCycle(key, made)
    assert.equal((await key.patch(`/agents/${agent}`, { tool_bindings: [] })).status, 200)
    const drift = (await key.get(`/formations/${made.id}/drift`)).body
    assert.deepEqual(
      drift.resources.filter(({ status }: any) => status !== 'in_sync').map((each: any) => each.logical_id),
      ['Agent'],
    )
    const changes = async () => (await createdBy(key, '/formations/plan', { formation_id: made.id }, 200)).changes
    const changed = (await changes()).filter(({ action }: any) => action !== 'no-op')
    assert.deepEqual(
      changed.map(({ logical_id, diff }: any) => [logical_id, diff.desired]),
      [['Agent', { tool_bindings: [{ tool_id: tool }] }]],
    )
    await requireCycle(key, await updated(key, made, {}))
    assert.equal((await key.delete(`/tools/${tool}`)).status, 204)
    assert.deepEqual(
      (await changes()).filter(({ action }: any) => action !== 'no-op').map((each: any) => each.logical_id),
      ['Agent', 'Tool'],
    )
    assert.notEqual((await requireCycle(key, await updated(key, made, {}))).tool, tool)
  })

  it('become a cycle by an update, and are deleted', async () => {
    const { key } = await app.project()
    const template = cycle('Support')
    const { tool_bindings: _, ...alone } = template.resources.Agent.properties
    const made = await active(key, {
      resources: { ...template.resources, Agent: { type: 'agent', properties: alone } },
    })
    const ids = await requireCycle(key, await updated(key, made, { template }))
    assert.deepEqual((await key.delete(`/formations/${made.id}`)).body, { success: true })
    for (const path of [`/agents/${ids.agent}`, `/tools/${ids.tool}`, `/workflows/${ids.workflow}`])
      assert.equal((await key.get(path)).status, 404, path)
  })

  it('are rolled back as a whole when the property is refused', async () => {
    const { key, id: project_id } = await app.project()
    const template = cycle('Support')
    const bindings = [
      ...template.resources.Agent.properties.tool_bindings,
      { tool_id: 'tool_00000000000000000000000000' },
    ]
    const agent = {
      ...template.resources.Agent,
      properties: { ...template.resources.Agent.properties, tool_bindings: bindings },
    }
    const refused = { resources: { ...template.resources, Agent: agent } }
    const problems = (await createdBy(key, '/formations/validate', { template: refused }, 200)).errors
    assert.deepEqual(
      problems.map(({ path }: any) => path),
      ['resources.Agent.properties'],
    )
    const made = (await key.post('/formations', { name: 'refused', template: refused })).body
    assert.deepEqual([made.status, made.error.meta.logical_id], ['failed', 'Agent'])
    for (const list of ['agents', 'tools', 'workflows', 'ai-providers'])
      assert.equal((await key.get(`/${list}?project_id=${project_id}`)).body.total, 0, list)
  })

  it('require the permission of the update before anything is created', async () => {
    const { id: project_id } = await app.project()
    const caller = await app.user(undefined, [
      {
        statement: [
          {
            effect: 'Allow',
            action: ['formations:*', 'agents:CreateAgent', 'ai-providers:*', 'tools:*', 'workflows:*', 'tasks:*'],
            resource: [`srn:${project_id}:*:*`],
          },
        ],
      },
    ])
    const made = await caller.post('/formations', { project_id, name: 'denied', template: cycle('Support') })
    assert.equal(made.status, 403)
    assert.deepEqual(
      made.body.error.meta.denied_actions.map(({ logical_id, action }: any) => [logical_id, action]),
      [['Agent', 'agents:UpdateAgent']],
    )
    assert.equal((await app.admin.get(`/ai-providers?project_id=${project_id}`)).body.total, 0)
  })

  it('are refused where a property that restricts a resource would be set later', async () => {
    const { key, id: project } = await app.project()
    const execute = { url: 'https://shop.example/' }
    const tool = (more: object) => ({ type: 'tool', properties: { name: 'refund', execute, ...more } })
    const limit = (more: object) => ({ type: 'guardrail', properties: { name: 'limit', class: 'D', ...more } })
    const templates: Record<string, object> = {
      guardrail: {
        Tool: tool({ guardrail_ids: [{ ref: 'Limit' }] }),
        Limit: limit({ context_tool_id: { ref: 'Tool' } }),
      },
      presets: {
        Tool: tool({ preset_parameters: { other: { ref: 'Other' } } }),
        Other: { type: 'tool', properties: { name: 'other', execute, preset_parameters: { tool: { ref: 'Tool' } } } },
      },
      policies: {
        Key: { type: 'api_key', properties: { name: 'bounded', policy_ids: [{ ref: 'Policy' }] } },
        Policy: {
          type: 'policy',
          properties: {
            name: 'own key',
            document: {
              statement: [
                { effect: 'Allow', action: ['agents:*'], resource: [{ sub: `srn:${project}:agent:\${Key}` }] },
              ],
            },
          },
        },
      },
    }
    for (const [what, resources] of Object.entries(templates)) {
      const { errors } = await createdBy(key, '/formations/validate', { template: { resources } }, 200)
      assert.deepEqual(
        errors.map(({ message }: any) => /^depend on each other, by properties that cannot be set later/.test(message)),
        [true],
        `${what} ${JSON.stringify(errors)}`,
      )
    }
  })

  it('are refused without a property that can be set later', async () => {
    const { key } = await app.project()
    const graph = (name: string) => ({
      type: 'orchestration',
      properties: {
        name,
        nodes: [{ id: 'ask', type: 'human', prompt: { sub: `See \${${name === 'A' ? 'B' : 'A'}}` } }],
        edges: [],
      },
    })
    const { valid, errors } = await createdBy(
      key,
      '/formations/validate',
      { template: { resources: { A: graph('A'), B: graph('B') } } },
      200,
    )
    assert.equal(valid, false)
    assert.match(errors[0].message, /cannot be set later: A, B$/)
  })

  it('are exported with references, and deployed in another project', async () => {
    const { key } = await app.project()
    const made = await active(key, cycle('Support'))
    const exported = (await createdBy(key, '/formations/export', { formation_id: made.id }, 200)) as any
    assert.deepEqual([exported.warnings, exported.parameters], [[], {}])
    const other = await app.project()
    const copy = await active(other.key, exported.template)
    const nameOf = (type: string) =>
      Object.keys(exported.template.resources).find(name => exported.template.resources[name].type === type) as string
    await requireCycle(other.key, copy, ['agent', 'tool', 'workflow'].map(nameOf))
    const again = (await createdBy(other.key, '/formations/export', { formation_id: copy.id }, 200)) as any
    assert.deepEqual(again.template, exported.template)
  })
})

describe('formations with cycles whose workers are lost', function () {
  this.timeout(240_000)
  const app = forSuite(() => startApp({ env: FAST }))

  // The fifth write sets the property of the agent; after it, everything is applied.
  for (const point of [
    'formation_called=kill:5',
    'formation_step=kill:4',
    'formation_step=kill:5',
    'formation_applied=kill',
  ])
    it(`are completed by another worker after ${point}`, async () => {
      const { key, id: project_id } = await app.project()
      const doomed = await startProcess('worker', app.databaseUrl, { ...FAST, FAULT_POINTS: point }, ['orchestration'])
      const { id } = (await key.post('/formations?wait=false', { name: 'cycle', template: cycle('Support') })).body
      await doomed.exited
      const worker = await runWorker(app.databaseUrl, FAST, ['orchestration'])
      try {
        const made = await eventually(
          async () => {
            const { body } = await key.get(`/formations/${id}`)
            return body.status === 'creating' ? null : body
          },
          { within: 60_000, what: 'the end of the deploy' },
        )
        assert.equal(made.status, 'active', JSON.stringify(made.error))
        const agent = (await key.get(`/agents/${physical(made, 'Agent')}`)).body
        assert.deepEqual(
          agent.tool_bindings.map((each: any) => each.tool_id),
          [physical(made, 'Tool')],
        )
        // The property was set once.
        assert.equal(agent.version, 2)
        for (const list of ['agents', 'tools', 'workflows'])
          assert.equal((await key.get(`/${list}?project_id=${project_id}`)).body.total, 1, list)
        const { data } = (await key.get(`/formations/${id}/events`)).body
        assert.deepEqual(
          data[0].events.map(({ action, logical_id }: any) => `${action} ${logical_id}`),
          ['create Provider', 'create Agent', 'create Workflow', 'create Tool', 'update Agent'],
        )
      } finally {
        await worker.stop()
        await doomed.kill()
      }
    })
})
