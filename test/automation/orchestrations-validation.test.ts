import assert from 'node:assert/strict'
import { validateGraph } from '#automation/orchestrations/definition/validate.ts'
import { ExactNumber } from '#core/base/exact-json.ts'
import { accepted, shared } from '../execution/share-support.ts'
import { refused } from '../execution/tool-target.ts'
import { type Client, startApp } from '../support/app.ts'
import { processorMs } from '../support/event-loop.ts'
import { forSuite } from '../support/suite.ts'
import { edge, findings, graphOf, refusedGraph, step } from './orchestration-support.ts'

/** A mapping that reads a path. */
const read = (path: unknown) => ({ input_mapping: { x: { var: path } } })
const input = 'input.x'

describe('validation of orchestrations', () => {
  const app = forSuite(() => startApp({ together: true }))
  let key: Client
  let maker: Client
  let projectId: string
  /** May do nothing: a graph is validated for anybody. */
  let anybody: Client
  before(async () => {
    const project = await app.projectWith(['orchestrations:ValidateOrchestration'])
    maker = (await app.projectWith(['orchestrations:CreateOrchestration'])).key
    key = project.key
    projectId = project.id
    anybody = await app.user()
  })

  const found = (graph: object) => findings(anybody, graph)
  const problemsOf = async (graph: object) => (await found(graph)).problems
  const warningsOf = async (graph: object) => {
    const { problems, warnings } = await found(graph)
    assert.deepEqual(problems, [])
    return warnings
  }
  /** Problems of one node. */
  const ofNode = (node: object) => problemsOf({ nodes: [node] })

  it('accepts a graph with every node type', async () => {
    const every = { var: input }
    const nodes = [
      {
        id: 'agent',
        type: 'agent',
        agent_id: 'agent_1',
        prompt: { cat: ['Hi ', every] },
        output_schema: { type: 'object' },
        timeout: '5m',
        on_error: 'route',
      },
      {
        id: 'tool',
        type: 'tool',
        tool_id: 'tool_1',
        operation_id: 'do',
        retry: { max_attempts: 20, backoff: { strategy: 'exponential', delay_ms: 0, max_delay_ms: 86_400_000 } },
      },
      { id: 'transform', type: 'transform', expression: false },
      { id: 'condition', type: 'condition', expression: { '>': [every, 1] } },
      { id: 'knowledge', type: 'knowledge', input_mapping: { query: every } },
      { id: 'memory', type: 'memory_write', memory_store_id: 'mstore_1', input_mapping: { content: 'x' } },
      { id: 'human', type: 'human', prompt: 'Which?', options: ['a', 'b'], expires_in: 60 },
      { id: 'webhook', type: 'webhook', mode: 'receive', expires_in: 31_536_000 },
      {
        id: 'approval',
        type: 'approval',
        tool_id: 'tool_1',
        arguments: { amount: every },
        reasoning: every,
        evidence: { a: every },
        predicted_impact: 'x',
        instructions: 'Look',
      },
      {
        id: 'loop',
        type: 'loop',
        orchestration_id: 'orch_1',
        collection: 'state.input.items',
        item_variable: 'it',
        parallelism: 100,
        max_iterations: 10_000,
        context_keys: ['Authorization'],
      },
      { id: 'sub', type: 'sub_orchestration', orchestration_id: 'orch_1', context_keys: [] },
      {
        id: 'poll',
        type: 'poll',
        tool_id: 'tool_1',
        exit_condition: { and: [{ var: 'response.done' }, { var: 'attempt' }] },
        interval: '0s',
        max_iterations: 1000,
        fail_on_timeout: true,
      },
      { id: 'delay', type: 'delay', duration: 'P1DT12H' },
      { id: 'until', type: 'delay', until: every },
      { id: 'event', type: 'emit_event', event_type: 'refunds.refused', metadata: { x: 1 } },
    ]
    assert.deepEqual(await found({ nodes, edges: [] }), { problems: [], warnings: [] })
    assert.deepEqual(await found({}), { problems: [], warnings: [] })
  })

  it('finds missing, invalid and duplicate IDs and types', async () => {
    const nodes = [
      { type: 'transform', expression: 1 },
      step(''),
      step('a b'),
      step('x'.repeat(129)),
      step('__proto__'),
      step('same'),
      step('same'),
      { ...step('a'), id: 7 },
      { id: 'untyped' },
      { id: 'number', type: 4 },
      { id: 'new', type: 'quantum' },
    ]
    const { problems, warnings } = await found({ nodes })
    assert.deepEqual(
      problems,
      [
        'NODE_ID_REQUIRED nodes[0].id',
        'NODE_ID_REQUIRED nodes[1].id',
        'NODE_ID_INVALID nodes[2].id',
        'NODE_ID_INVALID nodes[3].id',
        'NODE_ID_INVALID nodes[4].id',
        'NODE_ID_DUPLICATE nodes[6].id',
        'NODE_ID_INVALID nodes[7].id',
        'NODE_TYPE_REQUIRED nodes[8].type',
        'NODE_FIELD_INVALID nodes[9].type',
      ].sort(),
    )
    assert.deepEqual(warnings, ['NODE_TYPE_UNKNOWN nodes[10].type'])
  })

  it('refers to nodes by their index in the body', async () => {
    const anonymous = { type: 'transform', expression: 1 }
    const reads = (id: string, fields: object = {}) => step(id, { ...read('never'), ...fields })
    const nodes = [anonymous, reads('b'), { ...anonymous, id: 7 }, reads('b'), anonymous, reads('c', { type: 'odd' })]
    const cycle = { id: 'l', type: 'loop', orchestration_id: 'orch_1' }
    const graph = { nodes: [...nodes, cycle, step('m')], edges: [edge('l->m'), edge('m->l')] }
    assert.deepEqual(await found(graph), {
      problems: [
        'NODE_ID_DUPLICATE nodes[3].id',
        'NODE_ID_INVALID nodes[2].id',
        'NODE_ID_REQUIRED nodes[0].id',
        'NODE_ID_REQUIRED nodes[4].id',
        'STATE_KEY_UNWRITTEN nodes[1].input_mapping.x',
        'STATE_KEY_UNWRITTEN nodes[5].input_mapping.x',
      ],
      warnings: [
        'LOOP_REENTRY edges[1]',
        'NODE_TYPE_UNKNOWN nodes[5].type',
        'NODE_UNREACHABLE nodes[6]',
        'NODE_UNREACHABLE nodes[7]',
        'STATE_KEY_UNWRITTEN nodes[6].collection',
      ],
    })
  })

  it('finds required fields that are missing, null or empty', async () => {
    const required: Record<string, string[]> = {
      agent: ['agent_id'],
      tool: ['tool_id'],
      transform: ['expression'],
      condition: ['expression'],
      memory_write: ['memory_store_id'],
      approval: ['tool_id'],
      loop: ['orchestration_id'],
      sub_orchestration: ['orchestration_id'],
      poll: ['exit_condition', 'interval', 'tool_id'],
      emit_event: ['event_type'],
      delay: ['duration'],
      knowledge: [],
      human: [],
      webhook: [],
    }
    for (const [type, fields] of Object.entries(required)) {
      const expected = fields.map(field => `NODE_FIELD_REQUIRED nodes[0].${field}`)
      for (const value of [undefined, null, '']) {
        const given = type === 'delay' ? {} : Object.fromEntries(fields.map(field => [field, value]))
        assert.deepEqual(await ofNode({ id: 'a', type, ...given }), expected, `${type} ${value}`)
      }
    }
    assert.deepEqual(await ofNode({ id: 'a', type: 'delay', duration: '1s', until: '2030-01-01' }), [
      'NODE_FIELD_REQUIRED nodes[0].duration',
    ])
  })

  it('finds values of the wrong type, out of range or outside the choices', async () => {
    const loop = { id: 'a', type: 'loop', orchestration_id: 'orch_1', collection: 'input.items' }
    const poll = { id: 'a', type: 'poll', tool_id: 'tool_1', exit_condition: true, interval: '1s' }
    const agent = { id: 'a', type: 'agent', agent_id: 'agent_1' }
    const human = { id: 'a', type: 'human' }
    const wrong: [object, string][] = [
      [{ ...agent, agent_id: 7 }, 'NODE_FIELD_INVALID nodes[0].agent_id'],
      [{ ...agent, prompt: { text: 'no expression' } }, 'NODE_FIELD_INVALID nodes[0].prompt'],
      [{ ...agent, output_schema: 'object' }, 'SCHEMA_INVALID nodes[0].output_schema'],
      [{ ...agent, input_mapping: [] }, 'NODE_FIELD_INVALID nodes[0].input_mapping'],
      [{ ...agent, state_mapping: 'x' }, 'NODE_FIELD_INVALID nodes[0].state_mapping'],
      [{ ...agent, on_error: 'ignore' }, 'NODE_FIELD_INVALID nodes[0].on_error'],
      [{ ...agent, metadata: { x: 'x'.repeat(4096) } }, 'NODE_FIELD_INVALID nodes[0].metadata'],
      [{ ...loop, parallelism: 101 }, 'NODE_FIELD_INVALID nodes[0].parallelism'],
      [{ ...loop, parallelism: 1.5 }, 'NODE_FIELD_INVALID nodes[0].parallelism'],
      [{ ...loop, max_iterations: 10_001 }, 'NODE_FIELD_INVALID nodes[0].max_iterations'],
      [{ ...loop, item_variable: 'a.b' }, 'NODE_FIELD_INVALID nodes[0].item_variable'],
      [{ ...loop, item_variable: '__proto__' }, 'NODE_FIELD_INVALID nodes[0].item_variable'],
      [{ ...loop, context_keys: 'all' }, 'NODE_FIELD_INVALID nodes[0].context_keys'],
      [{ ...poll, max_iterations: 1001 }, 'NODE_FIELD_INVALID nodes[0].max_iterations'],
      [{ ...poll, max_iterations: new ExactNumber('1001.0') }, 'NODE_FIELD_INVALID nodes[0].max_iterations'],
      [{ ...poll, fail_on_timeout: 'yes' }, 'NODE_FIELD_INVALID nodes[0].fail_on_timeout'],
      [{ ...human, options: ['a', 7] }, 'NODE_FIELD_INVALID nodes[0].options[1]'],
      [{ ...human, expires_in: 0 }, 'NODE_FIELD_INVALID nodes[0].expires_in'],
      [{ id: 'a', type: 'webhook', mode: 'send' }, 'NODE_FIELD_INVALID nodes[0].mode'],
      ...['tomorrow', '2030-01-01 (x)', '2030-02-30', '1 Jan 2030'].map((until): [object, string] => [
        { id: 'a', type: 'delay', until },
        'NODE_FIELD_INVALID nodes[0].until',
      ]),
      [step('a', { expression: 'x'.repeat(65_536) }), 'NODE_FIELD_INVALID nodes[0].expression'],
      [step('a', { input_mapping: { big: 'x'.repeat(65_536) } }), 'NODE_FIELD_INVALID nodes[0].input_mapping.big'],
    ]
    for (const [node, expected] of wrong) assert.deepEqual(await ofNode(node), [expected])
  })

  it('finds invalid durations', async () => {
    const good = ['0s', '0.5ms', '1.5h', '366d', 'PT0S', 'P1D', 'PT90M', 'P365DT23H59M60S']
    const bad = ['', '5', 's', '-1s', '1 s', '367d', 'P', 'PT', 'P1DT', 'P1W', '1h30m', 'PT1H1H', 5, true, { a: 1 }]
    for (const duration of good) assert.deepEqual(await ofNode({ id: 'a', type: 'delay', duration }), [], duration)
    for (const duration of bad)
      assert.deepEqual(await ofNode({ id: 'a', type: 'delay', duration }), ['DURATION_INVALID nodes[0].duration'])
    const poll = { id: 'a', type: 'poll', tool_id: 'tool_1', exit_condition: true, interval: 'soon', timeout: '0s' }
    assert.deepEqual(await ofNode(poll), ['DURATION_INVALID nodes[0].interval', 'DURATION_INVALID nodes[0].timeout'])
  })

  it('finds invalid retry policies', async () => {
    const wrong: [unknown, string][] = [
      [3, ''],
      [{ max_attempts: 0 }, '.max_attempts'],
      [{ max_attempts: 21 }, '.max_attempts'],
      [{ attempts: 2 }, '.attempts'],
      [{ backoff: { strategy: 'linear' } }, '.backoff.strategy'],
      [{ backoff: { delay_ms: -1 } }, '.backoff.delay_ms'],
      [{ backoff: { delay_ms: 86_400_001, max_delay_ms: 86_400_001 } }, '.backoff.delay_ms'],
      [{ backoff: { delay_ms: 10, max_delay_ms: 9 } }, '.backoff.max_delay_ms'],
      [{ backoff: { delay_ms: 300_001 } }, '.backoff.max_delay_ms'],
    ]
    for (const [retry, path] of wrong)
      assert.deepEqual(await ofNode(step('a', { retry })), [`RETRY_INVALID nodes[0].retry${path}`])
  })

  it('finds reserved event types, and warns of events that triggers cannot match', async () => {
    const event = (event_type: unknown) => ({ nodes: [{ id: 'a', type: 'emit_event', event_type }] })
    for (const name of ['refused', 'Refunds.refused', 'refunds.', 'a b.c', `a.${'x'.repeat(128)}`, 7])
      assert.deepEqual(await problemsOf(event(name)), ['EVENT_TYPE_INVALID nodes[0].event_type'])
    for (const name of ['agents.created', 'orchestrations.deleted', 'orchestration_runs.failed'])
      assert.deepEqual(await problemsOf(event(name)), ['EVENT_TYPE_RESERVED nodes[0].event_type'])
    assert.deepEqual(await warningsOf(event('agents.refused')), ['EVENT_NOT_TRIGGERABLE nodes[0].event_type'])
    assert.deepEqual(await warningsOf(event('refunds.refused')), [])
  })

  it('finds state paths that may not be written', async () => {
    const keys = [
      'a..b',
      '',
      'state.',
      'a.__proto__.b',
      'constructor',
      'state.nodes',
      'input.x',
      'nodes.a',
      'fine.a',
      'state.nodes_x',
    ]
    const deep = Array.from({ length: 33 }, () => 'a').join('.')
    const state_mapping = Object.fromEntries([...keys, deep].map(name => [name, { var: 'output' }]))
    assert.deepEqual(
      await ofNode(step('a', { state_mapping })),
      [
        'STATE_PATH_INVALID nodes[0].state_mapping.',
        'STATE_PATH_INVALID nodes[0].state_mapping.a..b',
        'STATE_PATH_INVALID nodes[0].state_mapping.a.__proto__.b',
        'STATE_PATH_INVALID nodes[0].state_mapping.constructor',
        'STATE_PATH_INVALID nodes[0].state_mapping.state.',
        `STATE_PATH_INVALID nodes[0].state_mapping.${deep}`,
        'STATE_NAMESPACE_RESERVED nodes[0].state_mapping.input.x',
        'STATE_NAMESPACE_RESERVED nodes[0].state_mapping.nodes.a',
        'STATE_NAMESPACE_RESERVED nodes[0].state_mapping.state.nodes',
      ].sort(),
    )
  })

  it('finds edges with unknown ends and contradictory groups', async () => {
    const nodes = [step('a'), step('b'), step('c')]
    const edges = [
      { from: 'a', to: 'gone' },
      { from: 'lost', to: 'b' },
      { from: 'a' },
      { from: 7, to: 'b' },
      edge('a->b', { condition: 7 }),
      edge('a->b', { activation_group: '' }),
      edge('a->c', { activation_condition: 'any' }),
      edge('a->c', { activation_group: 'g', activation_condition: 'most' }),
      edge('a->c', { activation_group: 'h', activation_condition: 'any' }),
      edge('b->c', { activation_group: 'h' }),
      edge('b->c', { metadata: [] }),
    ]
    assert.deepEqual(
      await problemsOf({ nodes, edges }),
      [
        'EDGE_NODE_UNKNOWN edges[0].to',
        'EDGE_NODE_UNKNOWN edges[1].from',
        'EDGE_FIELD_INVALID edges[2].to',
        'EDGE_FIELD_INVALID edges[3].from',
        'EDGE_FIELD_INVALID edges[4].condition',
        'EDGE_FIELD_INVALID edges[5].activation_group',
        'EDGE_FIELD_INVALID edges[6].activation_condition',
        'EDGE_FIELD_INVALID edges[7].activation_condition',
        'EDGE_FIELD_INVALID edges[9].activation_condition',
        'EDGE_FIELD_INVALID edges[10].metadata',
      ].sort(),
    )
    const group = (activation_condition: string) => [
      edge('a->c', { activation_group: 'g', activation_condition }),
      edge('b->c', { activation_group: 'g', activation_condition }),
    ]
    for (const condition of ['all', 'any', 'settled'])
      assert.deepEqual(await found({ nodes, edges: group(condition) }), { problems: [], warnings: [] })
  })

  it('finds cycles with their nodes, and graphs without a start node', async () => {
    const nodes = ['s', 'a', 'b', 'c', 'd', 'self'].map(id => step(id))
    const edges = ['s->a', 'a->b', 'b->a', 'b->c', 'c->d', 'd->c', 'self->self'].map(text => edge(text))
    const { body } = await anybody.post('/orchestrations/validate', { nodes, edges })
    const cycles = body.problems.map(
      ({ code, path, message }: any) => `${code} ${path} ${message.replace(/.*: /, '').split(', ').sort()}`,
    )
    assert.deepEqual(cycles.sort(), [
      'CYCLE_DETECTED edges a,b',
      'CYCLE_DETECTED edges c,d',
      'CYCLE_DETECTED edges self',
    ])
    assert.deepEqual(await problemsOf(graphOf([step('a'), step('b')], ['a->b', 'b->a'])), [
      'CYCLE_DETECTED edges',
      'NO_START_NODE nodes',
    ])
  })

  it('allows a cycle through a loop, and warns of the edge that closes it', async () => {
    const loop = { id: 'loop', type: 'loop', orchestration_id: 'orch_1', collection: 'input.items' }
    const graph = graphOf([step('s'), step('a'), loop], ['s->a', 'a->loop', 'loop->a'])
    assert.deepEqual(await warningsOf(graph), ['LOOP_REENTRY edges[2]'])
    const alone = graphOf([step('a'), loop], ['a->loop', 'loop->a'])
    assert.deepEqual(await problemsOf(alone), ['NO_START_NODE nodes'])
    const island = graphOf([step('s'), step('a'), loop], ['a->loop', 'loop->a'])
    assert.deepEqual(await warningsOf(island), [
      'LOOP_REENTRY edges[1]',
      'NODE_UNREACHABLE nodes[1]',
      'NODE_UNREACHABLE nodes[2]',
    ])
  })

  it('warns of fields that the type of a node ignores', async () => {
    const node = step('a', { agent_id: 7, timeout: 'never', expires_in: null })
    assert.deepEqual(await warningsOf({ nodes: [node] }), [
      'NODE_FIELD_UNUSED nodes[0].agent_id',
      'NODE_FIELD_UNUSED nodes[0].timeout',
    ])
    assert.deepEqual(await warningsOf({ nodes: [{ id: 'a', type: 'quantum', agent_id: 7 }] }), [
      'NODE_TYPE_UNKNOWN nodes[0].type',
    ])
  })

  describe('of state reads', () => {
    const writer = (id: string, ...names: string[]) =>
      step(id, { state_mapping: Object.fromEntries(names.map(name => [name, { var: 'output.result' }])) })

    it('refuses an input mapping of an unwritten key', async () => {
      const graph = (path: unknown) =>
        graphOf([writer('a', 'state.known'), step('b', read(path)), writer('c', 'later')], ['a->b', 'b->c'])
      assert.deepEqual(await problemsOf(graph('never')), ['STATE_KEY_UNWRITTEN nodes[1].input_mapping.x'])
      assert.deepEqual(await problemsOf(graph('later')), ['STATE_KEY_UNWRITTEN nodes[1].input_mapping.x'])
      assert.deepEqual(await problemsOf(graph('state.known')), ['STATE_KEY_UNWRITTEN nodes[1].input_mapping.x'])
      assert.deepEqual(await warningsOf(graph(['never', 1])), ['STATE_KEY_UNWRITTEN nodes[1].input_mapping.x'])
      const dynamic = [{ cat: ['computed', '.path'] }]
      for (const path of ['known', 'known.deep.er', 'input.x', 'input', 'nodes', 'nodes.a.result', '', dynamic])
        assert.deepEqual(await warningsOf(graph(path)), [], String(path))
      const preserved = graphOf([step('a', { input_mapping: { x: { preserve: { var: 'never' } } } })])
      assert.deepEqual(await found(preserved), { problems: [], warnings: [] })
      const elements = graphOf([
        step('a', { input_mapping: { x: { map: [{ var: 'input.items' }, { var: 'price' }] } } }),
      ])
      assert.deepEqual(await found(elements), { problems: [], warnings: [] })
    })

    it('suggests the input if it declares the key', async () => {
      const graph = graphOf([step('a', read('order.id'))], [], { input_schema: { properties: { order: {} } } })
      const { body } = await anybody.post('/orchestrations/validate', graph)
      assert.match(body.problems[0].message, /input\.order/)
    })

    it('warns of unwritten keys elsewhere', async () => {
      const never = { var: 'never' }
      const nodes = [
        {
          id: 'a',
          type: 'approval',
          tool_id: 'tool_1',
          arguments: { x: never },
          reasoning: never,
          evidence: [never],
          predicted_impact: never,
        },
        step('b', {
          expression: never,
          state_mapping: { x: { var: 'state.never' }, y: { var: 'never' }, z: { var: 'state.x' } },
        }),
        { id: 'c', type: 'human', prompt: never },
        { id: 'd', type: 'delay', duration: never },
        { id: 'e', type: 'delay', until: never },
        {
          id: 'f',
          type: 'poll',
          tool_id: 'tool_1',
          exit_condition: { if: [{ var: 'response.ok' }, never] },
          interval: '1s',
        },
        { id: 'g', type: 'loop', orchestration_id: 'orch_1' },
        step('h', { expression: { missing: ['never'] } }),
      ]
      const at = [
        '0].arguments.x',
        '0].evidence',
        '0].predicted_impact',
        '0].reasoning',
        '1].expression',
        '1].state_mapping.x',
        '1].state_mapping.y',
        '2].prompt',
        '3].duration',
        '4].until',
        '5].exit_condition',
        '6].collection',
        '7].expression',
      ]
      assert.deepEqual(await warningsOf({ nodes }), at.map(path => `STATE_KEY_UNWRITTEN nodes[${path}`).sort())
    })

    it('warns of keys that only some paths write', async () => {
      const choose = step('choose', { type: 'condition' })
      const graph = (fields: object, edges = ['choose->a:yes', 'choose->b:no', 'a->end', 'b->end']) =>
        graphOf([choose, writer('a', 'only', 'both'), writer('b', 'both'), step('end', fields)], edges)
      assert.deepEqual(await warningsOf(graph(read('only'))), ['STATE_KEY_CONDITIONAL nodes[3].input_mapping.x'])
      assert.deepEqual(await warningsOf(graph(read('both'))), [])
      assert.deepEqual(
        await warningsOf(
          graph(read('both'), ['choose->a:yes', 'choose->b:no', 'a->end', 'b->end', 'choose->end:maybe']),
        ),
        ['STATE_KEY_CONDITIONAL nodes[3].input_mapping.x'],
      )
      assert.deepEqual(await warningsOf(graph(read('nodes.a.result'))), [
        'NODE_REFERENCE_CONDITIONAL nodes[3].input_mapping.x',
      ])
      assert.deepEqual(await warningsOf(graph(read('nodes.choose.label'))), [])
    })

    it('takes into account that a group of all waits for each source', async () => {
      const joined = (activation_condition: string) => ({
        nodes: [
          step('s'),
          writer('a', 'left'),
          writer('b', 'right'),
          step('end', { input_mapping: { l: { var: 'left' }, r: { var: 'nodes.b.result' } } }),
        ],
        edges: [
          edge('s->a'),
          edge('s->b'),
          edge('a->end', { activation_group: 'g', activation_condition }),
          edge('b->end', { activation_group: 'g', activation_condition }),
        ],
      })
      assert.deepEqual(await warningsOf(joined('all')), [])
      for (const condition of ['any', 'settled'])
        assert.deepEqual(await warningsOf(joined(condition)), [
          'NODE_REFERENCE_CONDITIONAL nodes[3].input_mapping.r',
          'STATE_KEY_CONDITIONAL nodes[3].input_mapping.l',
        ])
    })

    it('refuses reads of artifacts of nodes that are not upstream', async () => {
      const of = (id: string) => ({ var: [`nodes.${id}.result`, 1] })
      const nodes = [
        step('a', {
          input_mapping: { x: of('b') },
          state_mapping: { own: { var: 'state.nodes.a.result' }, other: { var: 'state.nodes.b' } },
        }),
        step('b', { expression: { if: [of('gone'), of('a')] } }),
        { id: 'c', type: 'loop', orchestration_id: 'orch_1', collection: 'nodes.c.results' },
      ]
      assert.deepEqual(await problemsOf(graphOf(nodes, ['a->b'])), [
        'NODE_REFERENCE_NOT_UPSTREAM nodes[0].input_mapping.x',
        'NODE_REFERENCE_NOT_UPSTREAM nodes[0].state_mapping.other',
        'NODE_REFERENCE_NOT_UPSTREAM nodes[1].expression',
        'NODE_REFERENCE_NOT_UPSTREAM nodes[2].collection',
      ])
    })

    it('is skipped for graphs with unknown ends or cycles', async () => {
      const nodes = [step('a', read('never')), step('b')]
      assert.deepEqual(await found(graphOf(nodes, ['a->gone'])), {
        problems: ['EDGE_NODE_UNKNOWN edges[0].to'],
        warnings: [],
      })
      assert.deepEqual(await problemsOf(graphOf([...nodes, step('s')], ['s->a', 'a->b', 'b->a'])), [
        'CYCLE_DETECTED edges',
      ])
    })
  })

  it('warns of groups that require several branches of one decision', async () => {
    const join = { activation_group: 'g' }
    const nodes = [step('choose', { type: 'condition' }), step('a'), step('b'), step('b2'), step('end')]
    const edges = [
      edge('choose->a:yes'),
      edge('choose->b:no'),
      edge('b->b2'),
      edge('a->end', join),
      edge('b2->end', join),
    ]
    assert.deepEqual(await warningsOf({ nodes, edges }), ['JOIN_MAY_NOT_FIRE edges[3].activation_group'])
    const also = [...edges, edge('choose->b2:yes')]
    assert.deepEqual(await warningsOf({ nodes, edges: also }), [])
    const approval = [{ id: 'choose', type: 'approval', tool_id: 'tool_1' }, ...nodes.slice(1)]
    const decided = [edge('choose->a'), edge('choose->b:rejected'), ...edges.slice(2)]
    assert.deepEqual(await warningsOf({ nodes: approval, edges: decided }), [
      'JOIN_MAY_NOT_FIRE edges[3].activation_group',
    ])
  })

  it('compiles schemas, including schemas of nodes', async () => {
    const bad = { type: 'objekt' }
    const graph = graphOf([{ id: 'a', type: 'agent', agent_id: 'agent_1', output_schema: bad }], [], {
      state_schema: bad,
      input_schema: bad,
    })
    const expected = [
      'SCHEMA_INVALID input_schema',
      'SCHEMA_INVALID nodes[0].output_schema',
      'SCHEMA_INVALID state_schema',
    ]
    assert.deepEqual(await problemsOf(graph), expected)
    const writer = await app.projectWith(['orchestrations:*'])
    assert.deepEqual(refusedGraph(await writer.key.post('/orchestrations', { name: 'x', ...graph })).problems, expected)
    const many = Array.from({ length: 300 }, (_, n) => ({
      id: `n${n}`,
      type: 'agent',
      agent_id: 'agent_1',
      output_schema: { title: `schema ${n}` },
    }))
    assert.equal((await writer.key.post('/orchestrations', { name: 'x', nodes: many, edges: [] })).status, 201)
  })

  it('refuses definitions above the limits', async () => {
    const steps = (count: number) => Array.from({ length: count }, (_, n) => step(`n${n}`))
    const edges = (count: number) => Array.from({ length: count }, (_, n) => edge('n0->n1', { condition: `${n}` }))
    assert.deepEqual(await problemsOf({ nodes: steps(500), edges: edges(2000) }), [])
    assert.deepEqual(await problemsOf({ nodes: steps(501), edges: edges(2001) }), [
      'LIMIT_EXCEEDED edges',
      'LIMIT_EXCEEDED nodes',
    ])
    const large = Array.from({ length: 20 }, (_, n) => step(`n${n}`, { expression: 'x'.repeat(60_000) }))
    assert.deepEqual(await problemsOf({ nodes: large }), ['LIMIT_EXCEEDED '])
    const wide = step('a', { input_mapping: Object.fromEntries(Array.from({ length: 1001 }, (_, n) => [`k${n}`, n])) })
    assert.deepEqual(await ofNode(wide), ['NODE_FIELD_INVALID nodes[0].input_mapping'])
  })

  it('lists at most 1,000 findings of a kind, and truncates names', async () => {
    const name = 'k'.repeat(50_000)
    const keys = Object.fromEntries(Array.from({ length: 900 }, (_, n) => [`k${n}`, { var: `never${n}` }]))
    const nodes = [
      step('a', { input_mapping: keys }),
      step('b', { input_mapping: { ...keys, [name]: { var: 'never' } } }),
    ]
    const { body } = await anybody.post('/orchestrations/validate', { nodes })
    assert.equal(body.problems.length, 1000)
    assert.equal(body.problems.at(-1).code, 'LIMIT_EXCEEDED')
    // Exactly as many as are listed; findings outside the graph count, too.
    const exact = [nodes[0], step('b', { input_mapping: Object.fromEntries(Object.entries(keys).slice(0, 100)) })]
    const { problems } = (await anybody.post('/orchestrations/validate', { nodes: exact })).body
    assert.deepEqual([problems.length, problems.at(-1).code], [1000, 'STATE_KEY_UNWRITTEN'])
    const withMore = [
      ...exact,
      { id: 'c', type: 'sub_orchestration', orchestration_id: 'orch_1', context_keys: ['a b'] },
      { id: 'd', type: 'agent', agent_id: 'agent_1', output_schema: { type: 'nonsense' } },
    ]
    const more = (await anybody.post('/orchestrations/validate', { nodes: withMore })).body.problems
    assert.deepEqual([more.length, more.at(-1).code], [1000, 'LIMIT_EXCEEDED'])
    const refusal = await maker.post('/orchestrations', { name: 'x', ...graphOf(exact.concat(withMore[3] as any)) })
    assert.equal(refusedGraph(refusal).problems.length, 1000)
    const [problem] = (
      await anybody.post('/orchestrations/validate', {
        nodes: [step('b', { input_mapping: { [name]: { var: name } } })],
      })
    ).body.problems
    assert.ok(problem.path.length < 300 && problem.message.length < 400)
  })

  it('looks up references of graphs within the limits, and lists 1,000 of them', async () => {
    const stores = Array.from({ length: 50 }, (_, n) => `store_${n}`)
    const knowing = (count: number) =>
      Array.from({ length: count }, (_, n) => ({ id: `n${n}`, type: 'knowledge', memory_store_ids: stores }))
    const warningsFor = async (nodes: object[]) => (await findings(key, { nodes })).warnings.length
    assert.deepEqual([await warningsFor(knowing(2)), await warningsFor(knowing(30))], [100, 1000])
    const beyond = knowing(501)
    assert.deepEqual(await findings(key, { nodes: beyond }), { problems: ['LIMIT_EXCEEDED nodes'], warnings: [] })
    const refusedReply = await maker.post('/orchestrations', { name: 'large', nodes: beyond, edges: [] })
    assert.deepEqual(refusedReply.body.error.meta.warnings, [])
    const passing = Array.from({ length: 3000 }, (_, n) => ({
      id: `n${n}`,
      type: 'loop',
      orchestration_id: 'orch_1',
      collection: 'input.items',
      context_keys: [' '],
    }))
    assert.equal((await findings(key, { nodes: passing })).problems.length, 501)
  })

  it('blocks the event loop only briefly for the worst graphs', async () => {
    const chain = Array.from({ length: 2000 }, (_, n) =>
      edge(`n${Math.floor(n / 4)}->n${Math.min(499, Math.floor(n / 4) + 1 + (n % 4))}`),
    )
    const graphs = [
      (n: number) =>
        step(`n${n}`, {
          expression: Array.from({ length: 80 }, (_, k) => ({ var: `k${(n * 7 + k) % 500}` })),
          state_mapping: { [`k${n}`]: 1 },
        }),
      (n: number) =>
        step(`n${n}`, { state_mapping: Object.fromEntries(Array.from({ length: 100 }, (_, k) => [`k${n}.${k}`, 1])) }),
      (n: number) =>
        step(`n${n}`, {
          expression: Array.from({ length: 25 }).reduce<unknown>(
            (inner, _, k) => ({ '+': [{ var: `q${k}` }, inner] }),
            1,
          ),
        }),
    ].map(make => Array.from({ length: 500 }, (_, n) => make(n)))
    for (const nodes of graphs) {
      const definition = {
        nodes: nodes as never,
        edges: chain.filter(({ from, to }) => from !== to),
        state_schema: null,
        input_schema: null,
      }
      const times = []
      for (let n = 0; n < 5; n++) times.push(await processorMs(() => validateGraph(definition)))
      assert.ok(Math.min(...times) < 500, `${times}`)
    }
  })

  it('requires no permission without a project, and the action with one', async () => {
    const graph = graphOf([{ id: 'a', type: 'tool', tool_id: 'tool_1' }])
    assert.deepEqual(await warningsOf(graph), [])
    refused(await app.anonymous.post('/orchestrations/validate', graph), 401, 'UNAUTHORIZED')
    refused(await anybody.post('/orchestrations/validate', { ...graph, project_id: projectId }), 403, 'FORBIDDEN')
    assert.deepEqual((await findings(key, graph)).warnings, ['REFERENCE_NOT_FOUND nodes[0].tool_id'])
    assert.deepEqual((await findings(app.admin, { ...graph, project_id: projectId })).warnings, [
      'REFERENCE_NOT_FOUND nodes[0].tool_id',
    ])
    const other = await app.projectWith(['orchestrations:ListOrchestrations'])
    refused(await other.key.post('/orchestrations/validate', graph), 403, 'FORBIDDEN')
    refused(
      await key.post('/orchestrations/validate', { ...graph, project_id: other.id }),
      403,
      'API_KEY_PROJECT_SCOPE',
    )
    const none = `proj_${'0'.repeat(26)}`
    refused(await app.admin.post('/orchestrations/validate', { ...graph, project_id: none }), 404, 'RESOURCE_NOT_FOUND')
    refused(await anybody.post('/orchestrations/validate', { nodes: {} }), 400, 'VALIDATION_FAILED')
  })

  it('warns of references missing in the project; shared resources count', async () => {
    const [mine, theirs] = [await app.project(), await app.project()]
    const tool = async (client: Client) => (await client.post('/tools', { name: 'x', type: 'client' })).body.id
    const [own, lent, foreign] = [await tool(mine.key), await tool(theirs.key), await tool(theirs.key)]
    const share = await shared(theirs.key, `srn:${theirs.id}:tool:${lent}`, { grantee: mine.id })
    await accepted(mine.key, share.id)
    const store = (await mine.key.post('/memory-stores', { name: 'facts' })).body.id
    const nodes = [
      { id: 'own', type: 'tool', tool_id: own },
      { id: 'lent', type: 'tool', tool_id: lent },
      { id: 'foreign', type: 'tool', tool_id: foreign },
      { id: 'agent', type: 'agent', agent_id: 'nobody' },
      { id: 'find', type: 'knowledge', memory_store_ids: [store, 'mstore_1'] },
      { id: 'keep', type: 'memory_write', memory_store_id: store },
      { id: 'sub', type: 'sub_orchestration', orchestration_id: `orch_${'0'.repeat(26)}` },
    ]
    const expected = [
      'REFERENCE_NOT_FOUND nodes[2].tool_id',
      'REFERENCE_NOT_FOUND nodes[3].agent_id',
      'REFERENCE_NOT_FOUND nodes[4].memory_store_ids[1]',
      'REFERENCE_NOT_FOUND nodes[6].orchestration_id',
    ]
    assert.deepEqual(await findings(mine.key, { nodes }), { problems: [], warnings: expected })
    assert.equal((await mine.key.post('/orchestrations', { name: 'x', nodes, edges: [] })).status, 201)
    const broken = { name: 'x', nodes, edges: [edge('own->gone')] }
    assert.deepEqual(refusedGraph(await mine.key.post('/orchestrations', broken)).warnings, expected)
  })

  it('is documented field by field', async () => {
    const { schemas } = (await app.anonymous.get('//openapi.json')).body.components
    const { properties, required } = schemas.OrchestrationNode
    assert.deepEqual(required, ['id', 'type'])
    // Of a node of its types; others are not read.
    const of = (name: string) => properties[name].anyOf?.[0] ?? properties[name]
    assert.equal(of('parallelism').maximum, 100)
    assert.equal(of('input_mapping').type, 'object')
    assert.deepEqual(of('on_error').enum, ['fail', 'route'])
    assert.deepEqual(schemas.OrchestrationEdge.properties.activation_condition.enum, ['all', 'any', 'settled'])
  })
})
