import { z } from 'zod'
import { describedField, isMapping } from '#automation/orchestrations/definition/fields.ts'
import { isObject } from '#core/base/exact-json.ts'
import { operationOf } from '#core/expressions/evaluate.ts'
import { MACHINE_TYPES, type PlaybookStep, type StepType } from './definition.ts'

/** Fields of steps, with their descriptions and accepted values. */

const anObject = z.unknown().refine(isObject, 'must be an object').meta({ type: 'object' })
const mapping = anObject
  .refine(value => !isObject(value) || isMapping(value), 'must have at most 1000 entries')
  .meta({ type: 'object' })
const id = z.string().min(1).max(255)
const target = z.string().min(1).max(255)
const textOrExpression = z
  .unknown()
  .refine(
    value => typeof value === 'string' || operationOf(value) !== null || isObject(value),
    'must be a string or an expression',
  )
const seconds = (least: number, most: number) => z.int().min(least).max(most)

export type StepField = {
  about: string
  schema: z.ZodType
  /** Step types that use the field; absent if all types do. */
  types?: readonly StepType[]
  /** Whether those types require the field. */
  required?: true
  code?: string
  /** Whether the field is an expression, a text or an expression, or an object whose values are expressions. */
  expression?: 'expression' | 'text' | 'entries'
}

const notBranch = [...MACHINE_TYPES, 'require_approval', 'wait', 'manual'] as const

/** All fields of steps, except key, title and type. */
const STEP_FIELDS = {
  instructions: { about: 'Instructions for people, in Markdown', schema: z.string().max(20_000) },
  when: {
    about: 'Expression; the step is skipped if it is false',
    schema: z.unknown(),
    expression: 'expression',
  },
  next: {
    about: 'Key of the next step, which must be a later one, or `end`. Default: the following step.',
    schema: target,
    types: notBranch,
  },
  on_failure: {
    about:
      'Target of a failure: `fail` - fails the execution; `continue` - continues with the next step; or the key of a later step. Default `fail`.',
    schema: target,
    types: notBranch,
  },
  retry: {
    about: 'Retry policy of failed attempts',
    schema: z.strictObject({
      max_attempts: z.int().min(1).max(10).describe('Total number of attempts'),
      backoff_seconds: z
        .number()
        .min(0)
        .max(3600)
        .optional()
        .describe('Delay before the second attempt, in seconds. Default 0.'),
      backoff_multiplier: z
        .number()
        .min(1)
        .max(10)
        .optional()
        .describe('Factor applied to each further delay. Default 1.'),
    }),
    types: MACHINE_TYPES,
    code: 'RETRY_INVALID',
  },
  case_writes: {
    about: 'Writes to the case: keys of `case.fields` with expressions over case, input, steps, execution and output',
    schema: mapping,
    expression: 'entries',
  },
  capture: {
    about:
      'Whether the output is stored as evidence of the case. Default true for ask_decider, require_approval and manual.',
    schema: z.boolean(),
  },
  agent_id: { about: 'Agent to instruct', schema: id, types: ['instruct_agent'], required: true },
  tool_id: { about: 'Tool to call', schema: id, types: ['call_tool'], required: true },
  operation_id: { about: 'Operation of a platform or mcp tool', schema: id, types: ['call_tool'] },
  orchestration_id: {
    about: 'Orchestration to run',
    schema: id,
    types: ['run_orchestration'],
    required: true,
  },
  decider_id: { about: 'Decider to call', schema: id, types: ['ask_decider'], required: true },
  input_mapping: {
    about: 'Input of the step: names with expressions over case, input, steps and execution',
    schema: mapping,
    types: MACHINE_TYPES,
    expression: 'entries',
  },
  reasoning: {
    about: 'Reason of the approval request: text or an expression',
    schema: textOrExpression,
    types: ['require_approval'],
    expression: 'text',
  },
  approval_evidence: {
    about: 'Evidence shown to the approver: names with expressions',
    schema: mapping,
    types: ['require_approval'],
    expression: 'entries',
  },
  expires_in_seconds: {
    about: 'Seconds until the approval expires. Default 86400.',
    schema: seconds(60, 2_592_000),
    types: ['require_approval'],
  },
  on_rejected: {
    about: 'Target of a rejection: `fail`, `end` or the key of a later step. Default `fail`.',
    schema: target,
    types: ['require_approval'],
  },
  on_expired: {
    about: 'Target of an expired approval: `fail`, `end` or the key of a later step. Default `fail`.',
    schema: target,
    types: ['require_approval'],
  },
  duration_seconds: { about: 'Length of the wait, in seconds', schema: seconds(1, 31_536_000), types: ['wait'] },
  until: {
    about:
      'Expression that returns the end of the wait as an ISO 8601 time. A time in the past ends the wait immediately.',
    schema: z.unknown(),
    types: ['wait'],
    expression: 'expression',
  },
  event: {
    about: 'Event of the project to wait for',
    schema: z.strictObject({
      pattern: z.string().min(1).max(128).describe('Event name, `prefix.*` or `*`'),
      filter: z
        .unknown()
        .optional()
        .describe('Expression over the event and over case, input, steps and execution at the start of the wait'),
      timeout_seconds: seconds(1, 31_536_000).nullish().describe('Seconds after which the step fails'),
    }),
    types: ['wait'],
  },
  assignee: {
    about: 'Assignee: text or an expression',
    schema: textOrExpression,
    types: ['manual'],
    expression: 'text',
  },
  result_schema: { about: 'JSON Schema of the result', schema: anObject, types: ['manual'] },
  required_evidence: {
    about: 'Evidence required to complete the step. At most 50.',
    schema: z
      .array(
        z.strictObject({
          name: z.string().min(1).max(200).describe('Name of the evidence'),
          kind: z.enum(['note', 'file', 'link']).describe('Kind of the evidence'),
        }),
      )
      .max(50),
    types: ['manual'],
  },
  due_seconds: {
    about: 'Seconds after which the step is overdue',
    schema: seconds(1, 31_536_000),
    types: ['manual'],
  },
  timeout_seconds: {
    about: 'Seconds after which the step fails',
    schema: seconds(1, 31_536_000),
    types: ['manual'],
  },
  skippable: { about: 'Whether people may skip the step. Default false.', schema: z.boolean(), types: ['manual'] },
  rules: {
    about: 'Rules of the branch: the first with a truthy `when` determines the target',
    schema: z
      .array(
        z.strictObject({
          when: z.unknown().describe('Expression'),
          go_to: target.describe('Target: the key of a later step, or `end`'),
        }),
      )
      .min(1)
      .max(20),
    types: ['branch'],
    required: true,
  },
  otherwise: {
    about: 'Target if no rule matches: the key of a later step, or `end`. Default: the following step.',
    schema: target,
    types: ['branch'],
  },
} as const satisfies { [Name in Exclude<keyof PlaybookStep, 'key' | 'title' | 'type'>]: StepField }

export const stepFields = Object.entries<StepField>(STEP_FIELDS)

const text = (about: string) => describedField({ about, schema: z.string() })

/** A step in a body or a record. Its field values are validated with the playbook. */
export const StepShape = z
  .looseObject({
    key: text('Key of the step: lower-case letters, digits and `_`, starting with a letter. At most 63 characters.'),
    title: text('Title shown to people. At most 200 characters.'),
    type: text(
      'Type of the step: instruct_agent, call_tool, run_orchestration, ask_decider, require_approval, wait, manual or branch',
    ),
    ...Object.fromEntries(stepFields.map(([name, field]) => [name, describedField(field)])),
  })
  .meta({ id: 'PlaybookStep', required: ['key', 'title', 'type'] }) as unknown as z.ZodType<PlaybookStep>
