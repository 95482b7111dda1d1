import { z } from 'zod'
import { DISPATCH_KINDS, type Transition, type WorkflowState } from './definition.ts'

/**
 * Fields of states and transitions for the API description. They accept any value: validation reports all problems of a
 * definition together, with specific codes.
 */

type Described = { type: string | string[]; description: string } & Record<string, unknown>

const field = (type: string, description: string, more: object = {}): Described => ({ type, description, ...more })

/** Returns the schema of an object whose optional fields may be null. */
const object = (description: string, properties: Record<string, Described>, required: string[]): Described =>
  field('object', description, {
    properties: Object.fromEntries(
      Object.entries(properties).map(([name, property]) => [
        name,
        required.includes(name) ? property : nullable(property),
      ]),
    ),
    required,
    additionalProperties: true,
  })

const nullable = ({ type, enum: values, ...rest }: Described): Described => ({
  ...rest,
  type: [type, 'null'].flat(),
  ...(values ? { enum: [...(values as string[]), null] } : {}),
})

const Dispatch = object(
  'Work started on entry',
  {
    kind: field('string', 'Kind of the work', { enum: [...DISPATCH_KINDS] }),
    agent_id: field('string', 'Agent that generates a turn, for kind agent'),
    orchestration_id: field('string', 'Orchestration to run, for kind orchestration'),
    tool_id: field('string', 'Tool to call, for kind tool'),
    trigger_id: field('string', 'Trigger to fire, for kind trigger'),
    operation_id: field('string', 'Operation of a platform tool, or server tool of an mcp tool'),
    input_mapping: field('object', 'Input of the work: keys with expressions over `task`', {
      additionalProperties: true,
    }),
    payload_writes: field('object', 'Payload writes on success: keys with expressions over `task` and `result`', {
      additionalProperties: true,
    }),
  },
  ['kind'],
)

const Retry = object(
  'Retry policy of failed dispatches. Default: no retries.',
  {
    max_attempts: field('integer', 'Total number of attempts, 1 to 10'),
    backoff_seconds: field('number', 'Delay before the second attempt in seconds, 0 to 3600. Default 0.'),
    backoff_multiplier: field('number', 'Factor applied to each further delay, 1 to 10. Default 1.'),
  },
  ['max_attempts'],
)

const Rule = object(
  'Rule for a successful dispatch',
  {
    when: { description: 'Expression over `task` and `result`' } as Described,
    transition: field('string', 'Transition applied when the expression is truthy'),
  },
  ['when', 'transition'],
)

const OnEnter = object(
  'Work dispatched on entry; not allowed in human and terminal states',
  {
    dispatch: Dispatch,
    retry: Retry,
    on_complete: field('array', 'Rules for a success; the first match is applied', { items: Rule }),
    on_failure: field('string', 'Transition applied after the last attempt has failed'),
  },
  ['dispatch'],
)

const item = <T>(id: string, { type, properties, required }: Record<string, unknown>) =>
  z.unknown().meta({ id, type, properties, required, additionalProperties: true } as never) as z.ZodType<T>

export const StateShape = item<WorkflowState>(
  'WorkflowState',
  object(
    'State of a workflow',
    {
      name: field('string', 'Name, unique in the workflow'),
      initial: field('boolean', 'Whether tasks start in this state. Exactly one state is initial.'),
      terminal: field('boolean', 'Whether entering the state closes the task'),
      kind: field('string', 'Kind of the state: `human` - the task waits for people', { enum: ['human'] }),
      on_enter: OnEnter,
      stalled_after: field('number', 'Seconds in this state after which a task is reported as stalled'),
    },
    ['name'],
  ),
)

export const TransitionShape = item<Transition>(
  'WorkflowTransition',
  object(
    'Transition of a workflow',
    {
      name: field('string', 'Name, unique in the workflow'),
      from: field('array', 'Names of the source states', { items: { type: 'string' } }),
      to: field('string', 'Name of the target state'),
      guard: field('object', 'Expression over `task`, `transition` and `principal` that must be truthy', {
        additionalProperties: true,
      }),
      requires_approval: field('boolean', 'Whether the transition requires an approval'),
    },
    ['name', 'from', 'to'],
  ),
)
