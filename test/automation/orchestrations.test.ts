import assert from 'node:assert/strict'
import { voidStatement } from '#core/db/sql.ts'
import { refused } from '../execution/tool-target.ts'
import { startApp } from '../support/app.ts'
import { forSuite } from '../support/suite.ts'
import { edge, graphOf, madeOrchestration, ORCHESTRATION_ACTIONS, refusedGraph, step } from './orchestration-support.ts'

describe('orchestrations', () => {
  const app = forSuite(startApp)
  const project = forSuite(() => app.projectWith(ORCHESTRATION_ACTIONS))

  const make = (fields: Record<string, unknown> = {}) => madeOrchestration(project.key, fields)

  it('are created, read, updated and deleted with permission', async () => {
    const graph = graphOf([step('a', { metadata: { x: 1 } }), step('b')], ['a->b'], {
      state_schema: { type: 'object' },
      input_schema: { type: 'object', required: ['order'] },
    })
    const made = await make({ name: 'Refund', description: 'Pays back', ...graph })
    assert.match(made.id, /^orch_[0-9a-z]{26}$/)
    assert.deepEqual(
      { ...made, id: 0, created_at: 0, updated_at: 0 },
      {
        id: 0,
        project_id: project.id,
        name: 'Refund',
        description: 'Pays back',
        a2a: null,
        version: 1,
        ...graph,
        created_at: 0,
        updated_at: 0,
      },
    )
    const path = `/orchestrations/${made.id}`
    assert.deepEqual((await project.key.get(path)).body, made)
    const grant = {
      effect: 'Allow',
      action: ['orchestrations:GetOrchestration'],
      resource: [`srn:${project.id}:orchestration:${made.id}`],
    }
    const reader = await app.user(undefined, [{ statement: [grant] }])
    assert.equal((await reader.get(path)).status, 200)
    refused(await reader.patch(path, { name: 'Mine' }), 403, 'FORBIDDEN')
    refused(await (await app.project()).key.get(path), 404, 'ORCHESTRATION_NOT_FOUND')
    assert.equal((await project.key.patch(path, { description: null })).body.description, null)
    const { etag } = Object.fromEntries((await project.key.get(path)).headers)
    assert.equal((await project.key.patch(path, { name: 'Refunds' })).status, 200)
    refused(await project.key.patch(path, { name: 'Late' }, { 'if-match': etag }), 412, 'PRECONDITION_FAILED')
    assert.equal((await project.key.delete(path)).status, 204)
    refused(await project.key.get(path), 404, 'ORCHESTRATION_NOT_FOUND')
    const { data: events } = (await project.key.get(`/events?resource_id=${made.id}`)).body
    assert.deepEqual(
      events.map(({ event }: any) => event),
      ['orchestrations.deleted', 'orchestrations.updated', 'orchestrations.updated', 'orchestrations.created'],
    )
    assert.deepEqual(events[3].data, made)
    const audited = (await app.admin.get(`/audit-log?project_id=${project.id}&limit=200`)).body.data
    const changes = audited.filter(
      ({ resource_public_id, status }: any) => resource_public_id === made.id && status < 300,
    )
    assert.deepEqual(
      changes.map(({ action, status }: any) => [action, status]),
      [
        ['orchestrations:DeleteOrchestration', 204],
        ['orchestrations:UpdateOrchestration', 200],
        ['orchestrations:UpdateOrchestration', 200],
        ['orchestrations:CreateOrchestration', 201],
      ],
    )
  })

  it('are listed by name and time; names need not be unique', async () => {
    const { key } = await app.projectWith(['orchestrations:*'])
    const first = await madeOrchestration(key, { name: 'Night run' })
    const second = await madeOrchestration(key, { name: 'Night run' })
    await madeOrchestration(key, { name: 'Day run' })
    const found = (await key.get('/orchestrations?name=nIGHT')).body
    assert.deepEqual([found.total, found.data.map(({ id }: any) => id)], [2, [second.id, first.id]])
    assert.equal((await key.get('/orchestrations?from=2999-01-01T00:00:00Z')).body.total, 0)
    assert.equal((await key.get('/orchestrations?to=2999-01-01T00:00:00Z&limit=1')).body.data.length, 1)
  })

  it('are listed with their versions in pages of less than 16 MiB', async () => {
    const { key } = await app.projectWith(['orchestrations:*'])
    const large = (value: number) => ({
      nodes: [step('a', { expression: value, instructions: 'x'.repeat(1_000_000) })],
    })
    const { id } = await madeOrchestration(key, large(0))
    for (let n = 1; n < 20; n++) {
      await madeOrchestration(key, large(n))
      assert.equal((await key.patch(`/orchestrations/${id}`, large(n))).status, 200)
    }
    for (const path of ['/orchestrations', `/orchestrations/${id}/versions`]) {
      const { data, total, limit } = (await key.get(`${path}?limit=50`)).body
      assert.deepEqual([data.length, total, limit], [17, 20, 17])
      assert.equal((await key.get(`${path}?limit=50&offset=17`)).body.data.length, 3)
    }
  })

  it('refuse bodies of another shape, with the path', async () => {
    const wrong: [string, object][] = [
      ['edges', { name: 'x', nodes: [step('a')] }],
      ['nodes', { name: 'x', edges: [] }],
      ['nodes', { name: 'x', nodes: {}, edges: [] }],
      ['nodes[0]', { name: 'x', nodes: ['a'], edges: [] }],
      ['edges[0]', { name: 'x', nodes: [], edges: [null] }],
      ['nodes[1].colour', { name: 'x', ...graphOf([step('a'), step('b', { colour: 'red' })]) }],
      ['edges[0].weight', { name: 'x', nodes: [step('a'), step('b')], edges: [edge('a->b', { weight: 1 })] }],
      ['state_schema', { name: 'x', ...graphOf([]), state_schema: [] }],
      ['name', { name: '', ...graphOf([]) }],
      ['managed_by', { name: 'x', ...graphOf([]), managed_by: 'me' }],
    ]
    for (const [path, body] of wrong) {
      const { meta } = refused(await project.key.post('/orchestrations', body), 400, 'VALIDATION_FAILED')
      assert.ok(
        meta.problems.some((problem: any) => problem.path === path),
        `${path}: ${JSON.stringify(meta.problems)}`,
      )
    }
    refused(await app.admin.post('/orchestrations', { name: 'x', ...graphOf([]) }), 400, 'VALIDATION_FAILED')
  })

  it('refuse a graph with all its problems, and write nothing', async () => {
    const graph = graphOf([{ id: 'ask', type: 'agent' }, step('a'), step('b')], ['a->b', 'b->a', 'ask->gone'])
    const expected = ['CYCLE_DETECTED edges', 'EDGE_NODE_UNKNOWN edges[2].to', 'NODE_FIELD_REQUIRED nodes[0].agent_id']
    const { key } = await app.projectWith(['orchestrations:*'])
    const { problems, meta } = refusedGraph(await key.post('/orchestrations', { name: 'x', ...graph }))
    assert.deepEqual(problems, expected)
    assert.match(meta.problems.find(({ code }: any) => code === 'CYCLE_DETECTED').message, /a, b|b, a/)
    const validated = await key.post('/orchestrations/validate', graph)
    assert.deepEqual(validated.body, { valid: false, problems: meta.problems, warnings: meta.warnings })
    assert.equal((await key.get('/orchestrations')).body.total, 0)
    const { id, ...before } = await madeOrchestration(key)
    assert.deepEqual(refusedGraph(await key.patch(`/orchestrations/${id}`, graph)).problems, expected)
    assert.deepEqual((await key.get(`/orchestrations/${id}`)).body, { id, ...before })
  })

  it('validate the merged definition on update', async () => {
    const { id } = await make(graphOf([step('a'), step('b')], ['a->b']))
    const { problems } = refusedGraph(await project.key.patch(`/orchestrations/${id}`, { nodes: [step('a')] }))
    assert.deepEqual(problems, ['EDGE_NODE_UNKNOWN edges[0].to'])
    assert.equal((await project.key.patch(`/orchestrations/${id}`, { nodes: [step('a')], edges: [] })).status, 200)
  })

  it('refuse invalid context keys', async () => {
    const node = { id: 'a', type: 'sub_orchestration', orchestration_id: 'orch_x', context_keys: ['fine', 'not fine'] }
    const graph = graphOf([node])
    const { meta } = refused(
      await project.key.post('/orchestrations', { name: 'x', ...graph }),
      400,
      'INVALID_TOOL_CONTEXT_KEY',
    )
    assert.deepEqual(meta.keys, ['not fine'])
    const { body } = await project.key.post('/orchestrations/validate', graph)
    assert.deepEqual(
      body.problems.map(({ code, path }: any) => [code, path]),
      [['INVALID_TOOL_CONTEXT_KEY', 'nodes[0].context_keys']],
    )
  })

  it('store definitions unchanged, with former field names renamed', async () => {
    const nodes = [
      { id: 'keep', type: 'memory_write', memory_id: 'mstore_1', state_mapping: { 'state.Zed.camelCase': 1, a_b: 2 } },
      { id: 'find', type: 'knowledge', memory_ids: ['mstore_1'], input_mapping: { query: 'x', memory_ids: 'mine' } },
    ]
    const made = await make(graphOf(nodes))
    assert.deepEqual(made.nodes, [
      {
        id: 'keep',
        type: 'memory_write',
        memory_store_id: 'mstore_1',
        state_mapping: { 'state.Zed.camelCase': 1, a_b: 2 },
      },
      {
        id: 'find',
        type: 'knowledge',
        memory_store_ids: ['mstore_1'],
        input_mapping: { query: 'x', memory_ids: 'mine' },
      },
    ])
    assert.deepEqual(Object.keys(made.nodes[0].state_mapping), ['state.Zed.camelCase', 'a_b'])
    assert.deepEqual((await project.key.get(`/orchestrations/${made.id}`)).body.nodes, made.nodes)
  })

  it('require permission on referenced tools and orchestrations when they are written', async () => {
    const tool = await project.key.post('/tools', {
      name: 'pays',
      execute: { method: 'GET', url: 'https://example.com/pay' },
    })
    assert.equal(tool.status, 201, JSON.stringify(tool.body))
    const inner = await make({ ...graphOf([step('a')], []) })
    const calls = { nodes: [{ id: 'pay', type: 'tool', tool_id: tool.body.id }], edges: [] }
    const runs = { nodes: [{ id: 'run', type: 'sub_orchestration', orchestration_id: inner.id }], edges: [] }
    const writer = await app.user(undefined, [
      {
        statement: [
          {
            effect: 'Allow',
            action: ['orchestrations:*'],
            resource: [`srn:${project.id}:*:*`],
          },
          {
            effect: 'Deny',
            action: ['orchestrations:StartRun'],
            resource: [`srn:${project.id}:orchestration:${inner.id}`],
          },
        ],
      },
    ])
    const body = { project_id: project.id, name: 'not mine' }
    refused(await writer.post('/orchestrations', { ...body, ...calls }), 403, 'FORBIDDEN')
    refused(await writer.post('/orchestrations', { ...body, ...runs }), 403, 'FORBIDDEN')
    const made = await make({ ...calls })
    const path = `/orchestrations/${made.id}`
    refused(await writer.patch(path, { nodes: [{ ...calls.nodes[0], input_mapping: { all: 1 } }] }), 403, 'FORBIDDEN')
    const moved = await writer.patch(path, { nodes: [{ ...calls.nodes[0], metadata: { x: 1 } }] })
    assert.deepEqual([moved.status, moved.body.version], [200, 1], JSON.stringify(moved.body))
    const changed = await writer.patch(path, graphOf([step('a')], []))
    assert.equal(changed.status, 200, JSON.stringify(changed.body))
    refused(await writer.post(`${path}/versions/1/restore`), 403, 'FORBIDDEN')
    assert.equal((await project.key.post(`${path}/versions/1/restore`)).status, 200)
  })

  it('that a module manages are invisible', async () => {
    const { key } = await app.projectWith(['orchestrations:*'])
    const { id } = await madeOrchestration(key)
    await app.pool.query(voidStatement`update orchestrations set managed_by = 'playbook' where id = ${id}`)
    const path = `/orchestrations/${id}`
    for (const at of [path, `${path}/versions`, `${path}/versions/1`, `${path}/versions/compare`, `${path}/diagram`])
      refused(await key.get(at), 404, 'ORCHESTRATION_NOT_FOUND')
    refused(await key.patch(path, { name: 'x' }), 404, 'ORCHESTRATION_NOT_FOUND')
    refused(await key.delete(path), 404, 'ORCHESTRATION_NOT_FOUND')
    refused(await key.post(`${path}/versions/1/restore`), 404, 'ORCHESTRATION_NOT_FOUND')
    assert.deepEqual((await key.get('/orchestrations')).body, { data: [], total: 0, limit: 50, offset: 0 })
    const graph = graphOf([{ id: 'a', type: 'sub_orchestration', orchestration_id: id }])
    const { warnings } = (await key.post('/orchestrations/validate', graph)).body
    assert.deepEqual(
      warnings.map(({ code }: any) => code),
      ['REFERENCE_NOT_FOUND'],
    )
  })

  describe('versions', () => {
    const versionsOf = async (id: string) =>
      (await project.key.get(`/orchestrations/${id}/versions`)).body.data.map(({ version, label }: any) => [
        version,
        label,
      ])

    it('follow behaviour, not names, metadata or the order of keys', async () => {
      const nodes = [step('a', { state_mapping: { x: 1, y: { var: 'state.x' } } }), step('b')]
      const { id } = await make({ ...graphOf(nodes, ['a->b']), version_label: 'first' })
      const path = `/orchestrations/${id}`
      const write = async (fields: object) => (await project.key.patch(path, fields)).body.version
      assert.equal(await write({ name: 'renamed', description: 'x', version_label: 'none' }), 1)
      assert.equal(await write({ nodes }), 1)
      const laidOut = nodes.map(node => ({ ...node, metadata: { x: 7 } }))
      assert.equal(await write({ nodes: laidOut, edges: [edge('a->b', { metadata: { bend: 1 } })] }), 1)
      assert.deepEqual((await project.key.get(path)).body.nodes, laidOut)
      assert.equal(await write({ nodes: nodes.map(({ id, ...node }) => ({ ...node, timeout: null, id })) }), 1)
      // The order of its keys is part of its behaviour.
      const turned = [step('a', { state_mapping: { y: { var: 'state.x' }, x: 1 } }), step('b')]
      assert.equal(await write({ nodes: turned, version_label: 'turned' }), 2)
      assert.deepEqual(Object.keys((await project.key.get(path)).body.nodes[0].state_mapping), ['y', 'x'])
      assert.equal(await write({ edges: [edge('a->b:yes')] }), 3)
      assert.equal(await write({ input_schema: { type: 'object' } }), 4)
      assert.equal(await write({ state_schema: { type: 'object' } }), 5)
      assert.deepEqual(await versionsOf(id), [
        [5, null],
        [4, null],
        [3, null],
        [2, 'turned'],
        [1, 'first'],
      ])
      const { config, ...version } = (await project.key.get(`${path}/versions/1`)).body
      assert.deepEqual(config, { nodes, edges: [edge('a->b')], state_schema: null, input_schema: null })
      assert.match(version.id, /^orch_ver_/)
      assert.deepEqual([version.orchestration_id, version.label], [id, 'first'])
      refused(await project.key.get(`${path}/versions/9`), 404, 'RESOURCE_NOT_FOUND')
      refused(await project.key.get(`${path}/versions/0`), 400, 'VALIDATION_FAILED')
    })

    it('are compared by node ID, and by the ends and labels of edges', async () => {
      const { id } = await make(graphOf([step('a'), step('b')], ['a->b:x', 'a->b:y']))
      const nodes = [step('new'), step('b', { expression: 2, metadata: { x: 1 } }), step('a')]
      const edges = [edge('a->b:y', { activation_group: 'g' }), edge('new->b')]
      await project.key.patch(`/orchestrations/${id}`, { nodes, edges })
      const { from, to, changes } = (await project.key.get(`/orchestrations/${id}/versions/compare`)).body
      assert.deepEqual([from, to], [1, 2])
      assert.deepEqual(
        changes.map(({ path, op }: any) => `${op} ${path}`),
        [
          'changed nodes.b.expression',
          'added nodes.new',
          'changed nodes',
          'removed edges.a->b:x',
          'added edges.a->b:y.activation_group',
          'added edges.new->b',
        ],
      )
      const back = (await project.key.get(`/orchestrations/${id}/versions/compare?from=2&to=1`)).body.changes
      assert.equal(back.length, 6)
      refused(await project.key.get(`/orchestrations/${id}/versions/compare?from=7`), 404, 'RESOURCE_NOT_FOUND')
    })

    it('are compared with the order where it matters', async () => {
      const mapped = (...keys: string[]) =>
        step('a', { state_mapping: Object.fromEntries(keys.map(key => [key, { var: 'output.result' }])) })
      const { id } = await make(graphOf([mapped('x', 'y', 'z'), step('b'), step('c')], ['a->b', 'a->c:1']))
      const path = `/orchestrations/${id}`
      const changesOf = async (fields: object) => {
        const version = (await project.key.get(path)).body.version
        assert.equal((await project.key.patch(path, fields)).body.version, version + 1)
        return (await project.key.get(`${path}/versions/compare`)).body.changes
      }
      const changed = (path: string, before: unknown, after: unknown) => ({ path, op: 'changed', before, after })
      assert.deepEqual(await changesOf({ nodes: [mapped('x', 'z', 'y'), step('b'), step('c')] }), [
        changed('nodes.a.state_mapping', ['x', 'y', 'z'], ['x', 'z', 'y']),
      ])
      assert.deepEqual(await changesOf({ nodes: [mapped('x', 'z', 'y'), step('c'), step('b')] }), [
        changed('nodes', ['a', 'b', 'c'], ['a', 'c', 'b']),
      ])
      assert.deepEqual(await changesOf({ edges: [edge('a->c:1'), edge('a->b')] }), [
        changed('edges', ['a->b', 'a->c:1'], ['a->c:1', 'a->b']),
      ])
      const [added] = await changesOf({
        nodes: [mapped('x', 'z', 'y'), step('c'), step('b'), { ...mapped('q'), id: 'd' }],
      })
      assert.deepEqual(added.after, { ...mapped('q'), id: 'd' })
      // An empty label is not none.
      const relabelled = await changesOf({ edges: [edge('a->c:1'), edge('a->b:')] })
      assert.deepEqual(
        relabelled.map(({ op, path }: any) => `${op} ${path}`),
        ['removed edges.a->b', 'added edges.a->b:'],
      )
    })

    it('are compared within the size of a response, however long a name is and however many edges are equal', async () => {
      const name = 'n'.repeat(300_000)
      const naming = (value: number) => ({ nodes: [step('a', { options: { [name]: Array(20_000).fill(value) } })] })
      const { id } = await make(naming(0))
      const path = `/orchestrations/${id}`
      assert.equal((await project.key.patch(path, naming(1))).status, 200)
      const { changes } = (await project.key.get(`${path}/versions/compare`)).body
      assert.deepEqual(
        changes.map(({ path, op, after }: any) => [path.length, op, after.length]),
        [[1000, 'changed', 20_000]],
      )
      const equal = { edges: Array.from({ length: 2000 }, () => edge(`a->b:${'x'.repeat(400)}`)) }
      assert.equal((await project.key.patch(path, { ...graphOf([step('a'), step('b')]), ...equal })).status, 200)
      const edges = (await project.key.get(`${path}/versions/compare`)).body.changes.map(({ path }: any) => path)
      const added = edges.filter((path: string) => path.startsWith('edges.'))
      assert.deepEqual([added.length, new Set(added).size], [2000, 2000])
      assert.match(added.at(-1), /x#2000$/)
    })

    it('are restored as the next version; the current one is not', async () => {
      const { id, nodes } = await make({ name: 'old' })
      const path = `/orchestrations/${id}`
      await project.key.patch(path, { nodes: [step('b')], name: 'new' })
      const restore = (version: number | string, body?: object) =>
        project.key.post(`${path}/versions/${version}/restore`, body)
      const { body } = await restore(1)
      assert.deepEqual([body.version, body.nodes, body.name], [3, nodes, 'new'])
      assert.equal((await restore(1)).body.version, 3)
      assert.equal((await restore(3)).body.version, 3)
      assert.equal((await restore(2, { label: 'again' })).body.version, 4)
      assert.deepEqual(await versionsOf(id), [
        [4, 'again'],
        [3, 'restored from v1'],
        [2, null],
        [1, null],
      ])
      refused(await restore(9), 404, 'RESOURCE_NOT_FOUND')
      refused(await restore('x'), 400, 'VALIDATION_FAILED')
      refused(await restore(1, { lable: 'x' }), 400, 'VALIDATION_FAILED')
    })

    it('that are no longer valid are not restored; missing references are allowed', async () => {
      const tool = await project.key.post('/tools', { name: 'pay', type: 'client' })
      const { id } = await make(graphOf([{ id: 'a', type: 'tool', tool_id: tool.body.id }]))
      const path = `/orchestrations/${id}`
      await project.key.patch(path, { nodes: [step('b')] })
      assert.equal((await project.key.delete(`/tools/${tool.body.id}`)).status, 204)
      assert.equal((await project.key.post(`${path}/versions/1/restore`)).body.version, 3)
      await app.pool.query(voidStatement`
        update orchestration_versions set config = '{"nodes":[{"id":"a"}],"edges":[],"state_schema":null,"input_schema":null}'
        where orchestration_id = ${id} and version = 2`)
      const reply = await project.key.post(`${path}/versions/2/restore`)
      assert.deepEqual(refusedGraph(reply).problems, ['NODE_TYPE_REQUIRED nodes[0].type'])
      assert.equal((await project.key.get(path)).body.version, 3)
    })

    it('of 20 concurrent writes have consecutive numbers', async () => {
      const { id } = await make()
      const path = `/orchestrations/${id}`
      const replies = await Promise.all(
        Array.from({ length: 20 }, (_, n) => project.key.patch(path, { nodes: [step(`n${n}`)] })),
      )
      const numbers = replies.map(({ body }) => body.version).sort((a, b) => a - b)
      assert.deepEqual(
        numbers,
        Array.from({ length: 20 }, (_, n) => n + 2),
      )
      const archived = (await project.key.get(`${path}/versions?limit=100`)).body.data
      for (const { body } of replies)
        assert.deepEqual(archived.find(({ version }: any) => version === body.version).config.nodes, body.nodes)
    })
  })

  describe('diagrams', () => {
    const draw = async (graph: object): Promise<string> => {
      const { id } = await make(graph as Record<string, unknown>)
      const reply = await project.key.get(`/orchestrations/${id}/diagram`)
      assert.equal(reply.status, 200)
      assert.match(reply.headers.get('content-type') as string, /^text\/plain/)
      return reply.body
    }

    it('show types, labels, groups and edges that close a cycle', async () => {
      const nodes = [
        step('size', { type: 'condition' }),
        step('a'),
        { id: 'each', type: 'loop', orchestration_id: 'orch_x', collection: 'input.items' },
      ]
      const edges = [
        edge('size->a:large'),
        edge('a->each', { activation_group: 'both' }),
        edge('size->each:small', { activation_group: 'both' }),
        edge('each->a'),
        edge('size->a:'),
      ]
      assert.equal(
        await draw({ nodes, edges }),
        `flowchart TD
  n0{"size #40;condition#41;"}
  n1["a #40;transform#41;"]
  n2[["each #40;loop#41;"]]
  n0 -->|"large"| n1
  n0 -->|"small #40;all#58; both#41;"| n2
  n0 -->|"#34;#34;"| n1
  n1 -->|"#40;all#58; both#41;"| n2
  n2 -.-> n1
`,
      )
    })

    it('are safe from any text in a graph', async () => {
      const hostile = '"] --> x\n  click n0 "javascript:alert(1)" %%{init}%% <script>`end`</script> #quot;|'
      const nodes = [{ id: 'a', type: hostile }, step('b')]
      const text = await draw({ nodes, edges: [edge('a->b', { condition: hostile, activation_group: hostile })] })
      const lines = text.trimEnd().split('\n')
      assert.equal(lines.length, 4)
      for (const line of lines.slice(1))
        assert.match(
          line,
          /^ {2}n\d(\["[^"<>`|\]\\%{}();:\n]*(#\d+;[^"<>`|\]\\%{}():\n]*)*"\]| -->\|"[^"<>`|\n]*"\| n\d)$/,
        )
    })
  })

  it('are cloned with their references, and with each other', async () => {
    const source = await app.projectWith(ORCHESTRATION_ACTIONS)
    const tool = (await source.key.post('/tools', { name: 'pay', type: 'client' })).body.id
    const child = await madeOrchestration(source.key, {
      name: 'child',
      ...graphOf([{ id: 'a', type: 'tool', tool_id: tool, input_mapping: { also: [tool] } }]),
      input_schema: { type: 'object' },
    })
    const parent = await madeOrchestration(source.key, {
      name: 'parent',
      ...graphOf([
        { id: 'each', type: 'loop', orchestration_id: child.id, collection: 'input.items' },
        { id: 'gone', type: 'agent', agent_id: 'agent_x' },
      ]),
    })
    await source.key.patch(`/orchestrations/${child.id}`, { name: 'child 2', edges: [], nodes: child.nodes })
    const include = ['orchestrations', 'tools']
    const { project: copied, ids } = (await app.admin.post(`/projects/${source.id}/clone`, { name: 'copy', include }))
      .body
    const copyOf = async (id: string) => (await app.admin.get(`/orchestrations/${ids[id]}`)).body
    const [childCopy, parentCopy] = [await copyOf(child.id), await copyOf(parent.id)]
    assert.deepEqual(childCopy.nodes, [
      { id: 'a', type: 'tool', tool_id: ids[tool], input_mapping: { also: [ids[tool]] } },
    ])
    assert.deepEqual(
      [childCopy.project_id, childCopy.version, childCopy.input_schema],
      [copied.id, 1, { type: 'object' }],
    )
    assert.deepEqual(
      parentCopy.nodes.map(({ orchestration_id, agent_id }: any) => orchestration_id ?? agent_id),
      [ids[child.id], 'agent_x'],
    )
    assert.equal((await app.admin.get(`/orchestrations/${ids[child.id]}/versions`)).body.total, 1)
  })
})
