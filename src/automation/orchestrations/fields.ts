import { z } from 'zod'
import { isObject, operationOf } from '../../core/expressions/evaluate.ts'
import { type Edge, type Node, type NodeType, WORKER_TYPES } from './definition.ts'
import { DURATION_SYNTAX, parseDuration, parseInstant } from './duration.ts'
import { EVENT_TYPE } from './event-types.ts'

/** The fields of nodes and edges: what they are for people and clients, and which values they take. */

const METADATA_BYTES = 4096

/** By one look: what is in it may be large, and is a matter of its own. */
const anObject = z.unknown().refine(isObject, 'must be an object').meta({ type: 'object' })

/** Entries of one object of expressions. */
const MAX_ENTRIES = 1000

export const isMapping = (value: unknown): value is Record<string, unknown> =>
  isObject(value) && Object.keys(value).length <= MAX_ENTRIES

const mapping = anObject
  .refine(value => !isObject(value) || isMapping(value), `must have at most ${MAX_ENTRIES} entries`)
  .meta({ type: 'object' })

const id = z.string().min(1).max(255)
const expression = z.unknown()
const seconds = z.int().min(1).max(31_536_000)

const inert = anObject.refine(value => Buffer.byteLength(JSON.stringify(value)) <= METADATA_BYTES, {
  message: `must be at most ${METADATA_BYTES} bytes as JSON`,
})

const isExpression = (value: unknown): boolean => operationOf(value) !== null

const textOrExpression = z
  .unknown()
  .refine(value => typeof value === 'string' || isExpression(value), 'must be a string or an expression')

const duration = z.string().refine(text => parseDuration(text) !== null, `must be ${DURATION_SYNTAX}`)

const Retry = z
  .strictObject({
    max_attempts: z.int().min(1).max(20).optional().describe('Attempts in all, default 1'),
    backoff: z
      .strictObject({
        strategy: z
          .enum(['fixed', 'exponential'])
          .optional()
          .describe('Whether the wait stays the same, which is the default, or doubles'),
        delay_ms: z.int().min(0).max(86_400_000).optional().describe('Wait before the second attempt, default 1000'),
        max_delay_ms: z.int().min(0).max(2_147_483_647).optional().describe('Longest wait, default 300000'),
      })
      .refine(({ delay_ms = 1000, max_delay_ms = 300_000 }) => max_delay_ms >= delay_ms, {
        path: ['max_delay_ms'],
        message: 'must be at least delay_ms; its default is 300000',
      })
      .optional()
      .describe('How long to wait between attempts'),
  })
  .describe('When an attempt that failed is made again')

export type Field = {
  about: string
  schema: z.ZodType
  /** The types of nodes that read it; absent where every type does. */
  types?: readonly NodeType[]
  /** Of those the types that cannot do without it. */
  required?: true
  /** What a value is reported under that it does not take. */
  code?: string
  /** It is or holds expressions: the value itself, or the values of an object by its keys. */
  expression?: 'value' | 'entries'
}

/** Types whose attempts have a time limit. */
const TIMED = ['agent', ...WORKER_TYPES, 'loop', 'sub_orchestration'] as const

/** Every field that a node of some type has, beside its id and its type. */
export const NODE_FIELDS = {
  input_mapping: {
    about: 'The input of the node: names with expressions over the state of the run',
    schema: mapping,
    expression: 'entries',
  },
  state_mapping: {
    about:
      'What the node writes to the state when it has completed: dotted paths with expressions over `output` and `state`',
    schema: mapping,
    expression: 'entries',
  },
  retry: { about: 'When an attempt that failed is made again', schema: Retry, code: 'RETRY_INVALID' },
  timeout: {
    about: `Time limit of one attempt, ${DURATION_SYNTAX}`,
    schema: duration.refine(text => parseDuration(text) !== 0, 'must be longer than nothing'),
    types: TIMED,
    code: 'DURATION_INVALID',
  },
  on_error: {
    about:
      'What becomes of a failure after the last attempt: `fail`, the default, fails the run; `route` completes the node with `{ error }` under the label `failed`',
    schema: z.enum(['fail', 'route']),
  },
  metadata: { about: 'Data of your own, such as a place in an editor, at most 4 KiB; nothing reads it', schema: inert },
  agent_id: { about: 'Agent that answers', schema: id, types: ['agent'], required: true },
  prompt: {
    about: 'A text, or an expression that gives one: what an agent is asked, what a person is told',
    schema: textOrExpression,
    types: ['agent', 'human'],
    expression: 'value',
  },
  output_schema: {
    about: 'JSON Schema that the answer is asked for in',
    schema: anObject,
    types: ['agent'],
    code: 'SCHEMA_INVALID',
  },
  tool_id: {
    about: 'Tool that is called; of an approval the tool that the decision is about',
    schema: id,
    types: ['tool', 'approval', 'poll'],
    required: true,
  },
  operation_id: {
    about: 'Action of the tool, for tools of type platform and mcp',
    schema: id,
    types: ['tool', 'poll'],
  },
  expression: {
    about: 'Expression over the state; its value is the result of a transform and the label of a condition',
    schema: expression,
    types: ['transform', 'condition'],
    required: true,
    expression: 'value',
  },
  memory_store_id: { about: 'Memory store that is written to', schema: id, types: ['memory_write'], required: true },
  memory_store_ids: {
    about: 'Memory stores that are searched where the input names none',
    schema: z.array(id).max(50),
    types: ['knowledge'],
  },
  options: {
    about: 'Choices of a person; `choice` of the answer has to be one of them',
    schema: z.array(z.string().min(1).max(1000)).min(1).max(100),
    types: ['human'],
  },
  mode: { about: '`receive`, which is the default', schema: z.enum(['receive']), types: ['webhook'] },
  expires_in: {
    about: 'Seconds to wait for the answer; an approval waits for 86400 unless it says otherwise',
    schema: seconds,
    types: ['human', 'webhook', 'approval'],
  },
  arguments: {
    about: 'Arguments that are shown to who decides: names with expressions over the state',
    schema: mapping,
    types: ['approval'],
    expression: 'entries',
  },
  reasoning: {
    about: 'Expression: why the call is proposed',
    schema: expression,
    types: ['approval'],
    expression: 'value',
  },
  evidence: { about: 'Expression: what speaks for it', schema: expression, types: ['approval'], expression: 'value' },
  predicted_impact: {
    about: 'Expression: what will come of it',
    schema: expression,
    types: ['approval'],
    expression: 'value',
  },
  instructions: {
    about: 'What who decides has to look at',
    schema: z.string().max(16_384),
    types: ['approval'],
  },
  orchestration_id: {
    about: 'Orchestration that is run, for each item of a loop once',
    schema: id,
    types: ['loop', 'sub_orchestration'],
    required: true,
  },
  collection: {
    about: 'Path of the state that holds the items of a loop, default `state.items`',
    schema: z.string().min(1).max(1000),
    types: ['loop'],
  },
  item_variable: {
    about: 'Name of the item in the input of its run, default `item`',
    schema: z.string().regex(/^[^.]{1,128}$/, 'must have 1 to 128 characters and no dot'),
    types: ['loop'],
  },
  parallelism: {
    about: 'Runs of a loop at a time, 1 to 100, default 5',
    schema: z.int().min(1).max(100),
    types: ['loop'],
  },
  max_iterations: {
    about: 'Of a loop the most items, 1 to 10000, default 1000; of a poll the most calls, 1 to 1000, default 10',
    schema: z.int().min(1).max(10_000),
    types: ['loop', 'poll'],
  },
  context_keys: {
    about: 'Keys of the tool context that the runs get; null is all, an empty list none',
    // What is no key has an error code of its own.
    schema: z.array(z.unknown()).max(64),
    types: ['loop', 'sub_orchestration'],
  },
  exit_condition: {
    about: 'Expression over the state with `response` and `attempt`: whether a poll has what it waits for',
    schema: expression,
    types: ['poll'],
    required: true,
    expression: 'value',
  },
  interval: {
    about: `Time between the calls of a poll, ${DURATION_SYNTAX}`,
    schema: duration,
    types: ['poll'],
    required: true,
    code: 'DURATION_INVALID',
  },
  fail_on_timeout: {
    about: 'Whether a poll fails that made its last call in vain, default false',
    schema: z.boolean(),
    types: ['poll'],
  },
  duration: {
    about: `How long to wait: ${DURATION_SYNTAX}, or an expression that gives one. Exactly one of duration and until`,
    schema: z
      .unknown()
      .refine(
        value => (typeof value === 'string' ? parseDuration(value) !== null : isExpression(value)),
        `must be ${DURATION_SYNTAX}, or an expression`,
      ),
    types: ['delay'],
    code: 'DURATION_INVALID',
    expression: 'value',
  },
  until: {
    about: 'Until when to wait: an ISO 8601 time, in UTC where it has no offset, or an expression that gives one',
    schema: z
      .unknown()
      .refine(
        value => (typeof value === 'string' ? parseInstant(value) !== null : isExpression(value)),
        'must be an ISO 8601 time or an expression',
      ),
    types: ['delay'],
    expression: 'value',
  },
  event_type: {
    about: 'Name of the event, such as `refunds.refused`',
    schema: z.string().max(128).regex(EVENT_TYPE, 'must be lower-case words, joined by dots, at least two'),
    types: ['emit_event'],
    required: true,
    code: 'EVENT_TYPE_INVALID',
  },
} as const satisfies { [Name in Exclude<keyof Node, 'id' | 'type'>]: Field }

export const nodeFields = Object.entries<Field>(NODE_FIELDS)

const label = z.string().max(1000)

/** Every field of an edge, beside its ends. */
const EDGE_FIELDS = {
  condition: {
    about: 'Label that lets the edge pass; without one it passes as the type of its source says',
    schema: label,
  },
  activation_group: { about: 'Joins the edges to a node that have the same group', schema: z.string().min(1).max(255) },
  activation_condition: {
    about:
      'When a group activates its node: `all`, the default, once every edge has passed; `any` with the first; `settled` once each has passed or can no longer pass, and at least one has',
    schema: z.enum(['all', 'any', 'settled']),
  },
  metadata: { about: 'Data of your own, at most 4 KiB; nothing reads it', schema: inert },
} as const satisfies { [Name in Exclude<keyof Edge, 'from' | 'to'>]: Field }

export const edgeFields = Object.entries<Field>(EDGE_FIELDS)

/** A field of a body that takes any value, because wrong ones are reported with all else that is wrong with the graph. */
export function describedField({
  schema,
  about,
  types,
}: {
  schema: z.ZodType
  about: string
  types?: readonly string[]
}) {
  const { $schema, ...documentation } = z.toJSONSchema(schema, { io: 'input', unrepresentable: 'any' })
  if (!types)
    return z
      .unknown()
      .optional()
      .meta({ ...documentation, description: about })
  // Nodes of other types do not read it: there it is kept as it is, whatever it says.
  const anyOf = [documentation, { description: 'Anything, where it is not read' }]
  return z
    .unknown()
    .optional()
    .meta({ anyOf, description: `${types.join(', ')}: ${about}` } as Record<string, unknown>)
}

const described = (fields: readonly [string, Field][]) =>
  Object.fromEntries(fields.map(([name, field]) => [name, describedField(field)]))

const text = (about: string) => describedField({ about, schema: z.string() })

/** A node in a body or a record. Values of its fields are checked with the graph. */
export const NodeShape = z
  .strictObject({
    id: text('Name of the node in the graph: 1 to 128 letters, digits, `_` and `-`'),
    type: text(
      'What it does: agent, tool, transform, condition, knowledge, memory_write, human, webhook, approval, loop, sub_orchestration, poll, delay, emit_event; a run fails at a node of another type',
    ),
    ...described(nodeFields),
    memory_id: text('Older name of memory_store_id'),
    memory_ids: describedField({ about: 'Older name of memory_store_ids', schema: z.array(id) }),
  })
  .meta({ id: 'OrchestrationNode', required: ['id', 'type'] }) as unknown as z.ZodType<Node>

export const EdgeShape = z
  .strictObject({
    from: text('Id of the node that it comes from'),
    to: text('Id of the node that it leads to'),
    ...described(edgeFields),
  })
  .meta({ id: 'OrchestrationEdge', required: ['from', 'to'] }) as unknown as z.ZodType<Edge>
