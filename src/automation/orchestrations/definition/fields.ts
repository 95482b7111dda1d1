import { z } from 'zod'
import { isObject } from '#core/base/exact-json.ts'
import { operationOf } from '#core/expressions/evaluate.ts'
import { type Edge, type Node, type NodeType, WORKER_TYPES } from './definition.ts'
import { DURATION_SYNTAX, parseDuration, parseInstant } from './duration.ts'
import { EVENT_TYPE } from './event-types.ts'

/** Fields of nodes and edges, with their descriptions and accepted values. */

const METADATA_BYTES = 4096

/** Accepts any object without validating its members, which may be large and are validated separately. */
const anObject = z.unknown().refine(isObject, 'must be an object').meta({ type: 'object' })

/** Limit of entries of one mapping. */
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
    max_attempts: z.int().min(1).max(20).optional().describe('Total number of attempts. Default 1.'),
    backoff: z
      .strictObject({
        strategy: z
          .enum(['fixed', 'exponential'])
          .optional()
          .describe(
            'Growth of the delay: `fixed` - constant; `exponential` - doubled after each attempt. Default `fixed`.',
          ),
        delay_ms: z
          .int()
          .min(0)
          .max(86_400_000)
          .optional()
          .describe('Delay before the second attempt, in milliseconds. Default 1000.'),
        max_delay_ms: z
          .int()
          .min(0)
          .max(2_147_483_647)
          .optional()
          .describe('Maximum delay, in milliseconds. Default 300000.'),
      })
      .refine(({ delay_ms = 1000, max_delay_ms = 300_000 }) => max_delay_ms >= delay_ms, {
        path: ['max_delay_ms'],
        message: 'must be at least delay_ms; its default is 300000',
      })
      .optional()
      .describe('Delay between attempts'),
  })
  .describe('Retry policy of failed attempts')

export type Field = {
  about: string
  schema: z.ZodType
  /** Node types that use the field; absent if all types do. */
  types?: readonly NodeType[]
  /** Whether those types require the field. */
  required?: true
  /** Code of the problem reported for an invalid value. */
  code?: string
  /** Whether the field is an expression, or an object whose values are expressions. */
  expression?: 'value' | 'entries'
}

/** Node types with a time limit per attempt. */
const TIMED = ['agent', ...WORKER_TYPES, 'loop', 'sub_orchestration'] as const

/** All fields of nodes, except id and type. */
export const NODE_FIELDS = {
  input_mapping: {
    about: 'Input of the node: names with expressions over the state of the run',
    schema: mapping,
    expression: 'entries',
  },
  state_mapping: {
    about: 'State writes of the completed node: dotted paths with expressions over `output` and `state`',
    schema: mapping,
    expression: 'entries',
  },
  retry: { about: 'Retry policy of failed attempts', schema: Retry, code: 'RETRY_INVALID' },
  timeout: {
    about: `Time limit of one attempt: ${DURATION_SYNTAX}`,
    schema: duration.refine(text => parseDuration(text) !== 0, 'must be greater than 0'),
    types: TIMED,
    code: 'DURATION_INVALID',
  },
  on_error: {
    about:
      'Handling of a failure after the last attempt: `fail` - fails the run; `route` - completes the node with `{ error }` and the label `failed`. Default `fail`.',
    schema: z.enum(['fail', 'route']),
  },
  metadata: { about: 'Custom data, for example a position in an editor; has no effect. At most 4 KiB.', schema: inert },
  agent_id: { about: 'Agent that generates the reply', schema: id, types: ['agent'], required: true },
  prompt: {
    about: 'Prompt for the agent or the person: text, or an expression that returns text',
    schema: textOrExpression,
    types: ['agent', 'human'],
    expression: 'value',
  },
  output_schema: {
    about: 'JSON Schema of the structured reply',
    schema: anObject,
    types: ['agent'],
    code: 'SCHEMA_INVALID',
  },
  tool_id: {
    about: 'Tool to call; of an approval, the tool of the proposed call',
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
    about: 'Expression over the state. Its value is the result of a transform or the label of a condition.',
    schema: expression,
    types: ['transform', 'condition'],
    required: true,
    expression: 'value',
  },
  memory_store_id: { about: 'Memory store to write to', schema: id, types: ['memory_write'], required: true },
  memory_store_ids: {
    about: 'Memory stores to search if the input lists none',
    schema: z.array(id).max(50),
    types: ['knowledge'],
  },
  options: {
    about: 'Choices of the person; `choice` of the input must be one of them',
    schema: z.array(z.string().min(1).max(1000)).min(1).max(100),
    types: ['human'],
  },
  mode: { about: '`receive` is the only mode. Default `receive`.', schema: z.enum(['receive']), types: ['webhook'] },
  expires_in: {
    about: 'Seconds until the wait expires. Default of an approval: 86400.',
    schema: seconds,
    types: ['human', 'webhook', 'approval'],
  },
  arguments: {
    about: 'Arguments shown to the approver: names with expressions over the state',
    schema: mapping,
    types: ['approval'],
    expression: 'entries',
  },
  reasoning: {
    about: 'Expression for the reason of the proposed call',
    schema: expression,
    types: ['approval'],
    expression: 'value',
  },
  evidence: {
    about: 'Expression for the evidence shown to the approver',
    schema: expression,
    types: ['approval'],
    expression: 'value',
  },
  predicted_impact: {
    about: 'Expression for the predicted impact of the call',
    schema: expression,
    types: ['approval'],
    expression: 'value',
  },
  instructions: {
    about: 'Instructions for the approver',
    schema: z.string().max(16_384),
    types: ['approval'],
  },
  orchestration_id: {
    about: 'Orchestration to run; a loop runs it once per item',
    schema: id,
    types: ['loop', 'sub_orchestration'],
    required: true,
  },
  collection: {
    about: 'State path of the items of a loop. Default `state.items`.',
    schema: z.string().min(1).max(1000),
    types: ['loop'],
  },
  item_variable: {
    about: 'Name of the item in the input of its run. Default `item`.',
    schema: z.string().regex(/^[^.]{1,128}$/, 'must have 1 to 128 characters and no dot'),
    types: ['loop'],
  },
  parallelism: {
    about: 'Concurrent runs of a loop, 1 to 100. Default 5.',
    schema: z.int().min(1).max(100),
    types: ['loop'],
  },
  max_iterations: {
    about: 'Limit of loop items, 1 to 10000, default 1000; or of poll calls, 1 to 1000, default 10',
    schema: z.int().min(1).max(10_000),
    types: ['loop', 'poll'],
  },
  context_keys: {
    about: 'Keys of the tool context passed to the nested runs. Null passes all keys, an empty list none.',
    // Invalid keys have a separate error code.
    schema: z.array(z.unknown()).max(64),
    types: ['loop', 'sub_orchestration'],
  },
  exit_condition: {
    about: 'Expression over the state, `response` and `attempt`; the poll ends when it is truthy',
    schema: expression,
    types: ['poll'],
    required: true,
    expression: 'value',
  },
  interval: {
    about: `Time between the calls of a poll: ${DURATION_SYNTAX}`,
    schema: duration,
    types: ['poll'],
    required: true,
    code: 'DURATION_INVALID',
  },
  fail_on_timeout: {
    about: 'Whether a poll fails if exit_condition is not met after the last call. Default false.',
    schema: z.boolean(),
    types: ['poll'],
  },
  duration: {
    about: `Length of the delay: ${DURATION_SYNTAX}, or an expression that returns one. Exactly one of duration and until is required.`,
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
    about: 'End of the delay: an ISO 8601 time, in UTC if it has no offset, or an expression that returns one',
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
    about: 'Name of the event, for example `refunds.refused`',
    schema: z.string().max(128).regex(EVENT_TYPE, 'must be at least two lower-case words joined by dots'),
    types: ['emit_event'],
    required: true,
    code: 'EVENT_TYPE_INVALID',
  },
} as const satisfies { [Name in Exclude<keyof Node, 'id' | 'type'>]: Field }

export const nodeFields = Object.entries<Field>(NODE_FIELDS)

const label = z.string().max(1000)

/** All fields of edges, except their ends. */
const EDGE_FIELDS = {
  condition: {
    about: 'Label for which the edge passes. Without a condition, the source node determines whether it passes.',
    schema: label,
  },
  activation_group: {
    about: 'Group that joins this edge with other edges into the same node',
    schema: z.string().min(1).max(255),
  },
  activation_condition: {
    about:
      'Condition under which a group activates its node: `all` - every edge has passed; `any` - one edge has passed; `settled` - every edge has passed or can no longer pass, and at least one has passed. Default `all`.',
    schema: z.enum(['all', 'any', 'settled']),
  },
  metadata: { about: 'Custom data; has no effect. At most 4 KiB.', schema: inert },
} as const satisfies { [Name in Exclude<keyof Edge, 'from' | 'to'>]: Field }

export const edgeFields = Object.entries<Field>(EDGE_FIELDS)

/**
 * Returns the body schema of a field. It accepts any value, because invalid values are reported together with all other
 * problems of the graph.
 */
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
  // Nodes of other types ignore the field; its value is stored unchecked.
  const anyOf = [documentation, { description: 'Any value, for node types that ignore the field' }]
  return z
    .unknown()
    .optional()
    .meta({ anyOf, description: `${types.join(', ')}: ${about}` } as Record<string, unknown>)
}

const described = (fields: readonly [string, Field][]) =>
  Object.fromEntries(fields.map(([name, field]) => [name, describedField(field)]))

const text = (about: string) => describedField({ about, schema: z.string() })

/** A node in a body or a record. Its field values are validated with the graph. */
export const NodeShape = z
  .strictObject({
    id: text('Name of the node in the graph: 1 to 128 letters, digits, `_` and `-`'),
    type: text(
      'Type of the node: agent, tool, transform, condition, knowledge, memory_write, human, webhook, approval, loop, sub_orchestration, poll, delay or emit_event. Runs fail at nodes of unsupported types.',
    ),
    ...described(nodeFields),
    memory_id: text('Former name of memory_store_id'),
    memory_ids: describedField({ about: 'Former name of memory_store_ids', schema: z.array(id) }),
  })
  .meta({ id: 'OrchestrationNode', required: ['id', 'type'] }) as unknown as z.ZodType<Node>

export const EdgeShape = z
  .strictObject({
    from: text('ID of the source node'),
    to: text('ID of the target node'),
    ...described(edgeFields),
  })
  .meta({ id: 'OrchestrationEdge', required: ['from', 'to'] }) as unknown as z.ZodType<Edge>
