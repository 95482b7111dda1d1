import { z } from 'zod'
import { isObject, operationOf } from '../../core/expressions/evaluate.ts'
import { describedField, isMapping } from '../orchestrations/fields.ts'
import { MACHINE_TYPES, type PlaybookStep, type StepType } from './definition.ts'

/** The fields of steps: what they are for people and clients, and which values they take. */

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
  /** The types of steps that read it; absent where every type does. */
  types?: readonly StepType[]
  /** Of those the types that cannot do without it. */
  required?: true
  code?: string
  /** Whether it is an expression, a text or an expression, or holds expressions by keys. */
  expression?: 'expression' | 'text' | 'entries'
}

const notBranch = [...MACHINE_TYPES, 'require_approval', 'wait', 'manual'] as const

/** Every field that a step of some type has, beside its key, title and type. */
export const STEP_FIELDS = {
  instructions: { about: 'What is to be done, for people, as Markdown', schema: z.string().max(20_000) },
  when: {
    about: 'Expression; where it gives false the step is skipped',
    schema: z.unknown(),
    expression: 'expression',
  },
  next: {
    about: 'Key of a later step that follows, or `end`; default the one behind it',
    schema: target,
    types: notBranch,
  },
  on_failure: {
    about: 'What follows a failure: `fail`, the default, fails the execution; `continue` goes on; or a later key',
    schema: target,
    types: notBranch,
  },
  retry: {
    about: 'When an attempt that failed is made again',
    schema: z.strictObject({
      max_attempts: z.int().min(1).max(10).describe('Attempts in all'),
      backoff_seconds: z.number().min(0).max(3600).optional().describe('Wait before the second attempt, default 0'),
      backoff_multiplier: z.number().min(1).max(10).optional().describe('What each further wait grows by, default 1'),
    }),
    types: MACHINE_TYPES,
    code: 'RETRY_INVALID',
  },
  case_writes: {
    about: 'Keys of `case.fields` with expressions over case, input, steps, execution and output',
    schema: mapping,
    expression: 'entries',
  },
  capture: {
    about: 'Keep the output as evidence of the case; default true for ask_decider, require_approval and manual',
    schema: z.boolean(),
  },
  agent_id: { about: 'Agent that is asked', schema: id, types: ['instruct_agent'], required: true },
  tool_id: { about: 'Tool that is called', schema: id, types: ['call_tool'], required: true },
  operation_id: { about: 'Operation of a platform or mcp tool', schema: id, types: ['call_tool'] },
  orchestration_id: {
    about: 'Orchestration that is run',
    schema: id,
    types: ['run_orchestration'],
    required: true,
  },
  decider_id: { about: 'Decider that is asked', schema: id, types: ['ask_decider'], required: true },
  input_mapping: {
    about: 'The input: names with expressions over case, input, steps and execution',
    schema: mapping,
    types: MACHINE_TYPES,
    expression: 'entries',
  },
  reasoning: {
    about: 'Why approval is asked for: a text or an expression',
    schema: textOrExpression,
    types: ['require_approval'],
    expression: 'text',
  },
  approval_evidence: {
    about: 'What the approver is shown: names with expressions',
    schema: mapping,
    types: ['require_approval'],
    expression: 'entries',
  },
  expires_in_seconds: {
    about: 'When the approval expires, default 86400',
    schema: seconds(60, 2_592_000),
    types: ['require_approval'],
  },
  on_rejected: {
    about: 'What follows a rejection: `fail`, the default, `end` or a later key',
    schema: target,
    types: ['require_approval'],
  },
  on_expired: {
    about: 'What follows when nobody decided in time: `fail`, the default, `end` or a later key',
    schema: target,
    types: ['require_approval'],
  },
  duration_seconds: { about: 'How long to wait', schema: seconds(1, 31_536_000), types: ['wait'] },
  until: {
    about: 'Expression that gives the ISO time until which to wait; a past one does not wait',
    schema: z.unknown(),
    types: ['wait'],
    expression: 'expression',
  },
  event: {
    about: 'Event of the project to wait for: `pattern`, and if need be a `filter` and `timeout_seconds`',
    schema: z.strictObject({
      pattern: z.string().min(1).max(128).describe('Name of the event, `prefix.*` or `*`'),
      filter: z
        .unknown()
        .optional()
        .describe(
          'Expression over the envelope, and case, input, steps and execution as they were when the wait began',
        ),
      timeout_seconds: seconds(1, 31_536_000).nullish().describe('Seconds after which the step fails'),
    }),
    types: ['wait'],
  },
  assignee: {
    about: 'Who is to do it: a text or an expression',
    schema: textOrExpression,
    types: ['manual'],
    expression: 'text',
  },
  result_schema: { about: 'JSON Schema that the result has to satisfy', schema: anObject, types: ['manual'] },
  required_evidence: {
    about: 'Evidence that has to be there before the step can be completed, at most 50',
    schema: z
      .array(
        z.strictObject({
          name: z.string().min(1).max(200).describe('Name of the evidence'),
          kind: z.enum(['note', 'file', 'link']).describe('What it is'),
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
  skippable: { about: 'Whether people may skip it, default false', schema: z.boolean(), types: ['manual'] },
  rules: {
    about: 'The first whose `when` holds says with `go_to`, a later key or `end`, what follows',
    schema: z
      .array(
        z.strictObject({
          when: z.unknown().describe('Expression'),
          go_to: target.describe('A later key, or `end`'),
        }),
      )
      .min(1)
      .max(20),
    types: ['branch'],
    required: true,
  },
  otherwise: {
    about: 'What follows when no rule holds: a later key or `end`; default the step behind it',
    schema: target,
    types: ['branch'],
  },
} as const satisfies { [Name in Exclude<keyof PlaybookStep, 'key' | 'title' | 'type'>]: StepField }

export const stepFields = Object.entries<StepField>(STEP_FIELDS)

const text = (about: string) => describedField({ about, schema: z.string() })

/** A step in a body or a record. Values of its fields are checked with the playbook. */
export const StepShape = z
  .looseObject({
    key: text('Name of the step in the playbook: lower-case letters, digits and `_`, from a letter, at most 63'),
    title: text('What people read, at most 200 characters'),
    type: text('instruct_agent, call_tool, run_orchestration, ask_decider, require_approval, wait, manual or branch'),
    ...Object.fromEntries(stepFields.map(([name, field]) => [name, describedField(field)])),
  })
  .meta({ id: 'PlaybookStep', required: ['key', 'title', 'type'] }) as unknown as z.ZodType<PlaybookStep>
