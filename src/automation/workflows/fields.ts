import { z } from 'zod'
import { DISPATCH_KINDS, type Transition, type WorkflowState } from './definition.ts'

/**
 * The fields of states and transitions, as the description of the API shows them. Nothing is refused here: what is wrong in
 * a definition is found by its validation, all of it at once, under codes of its own.
 */

type Described = { type: string | string[]; description: string } & Record<string, unknown>

const field = (type: string, description: string, more: object = {}): Described => ({ type, description, ...more })

/** An object whose fields may be null where they are not required: null is the same as nothing. */
const object = (description: string, properties: Record<string, Described>, required: string[]): Described =>
  field('object', description, {
    properties: Object.fromEntries(
      Object.entries(properties).map(([name, each]) => [name, required.includes(name) ? each : nullable(each)]),
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
  'What is started',
  {
    kind: field('string', 'What is started', { enum: [...DISPATCH_KINDS] }),
    agent_id: field('string', 'Agent that makes a turn, for the kind agent'),
    orchestration_id: field('string', 'Orchestration of which a run is started, for the kind orchestration'),
    tool_id: field('string', 'Tool that is called, for the kind tool'),
    trigger_id: field('string', 'Trigger that is fired, for the kind trigger'),
    operation_id: field('string', 'Operation of a platform tool, tool of the server of an mcp tool'),
    input_mapping: field('object', 'Keys of the input with expressions over `task`', { additionalProperties: true }),
    payload_writes: field('object', 'Keys of the payload with expressions over `task` and `result`, for a success', {
      additionalProperties: true,
    }),
  },
  ['kind'],
)

const Retry = object(
  'When a dispatch that failed is made again; without it never',
  {
    max_attempts: field('integer', 'Attempts in all, 1 to 10'),
    backoff_seconds: field('number', 'Wait before the second attempt, 0 to 3600; default 0'),
    backoff_multiplier: field('number', 'Factor of each later wait, 1 to 10; default 1'),
  },
  ['max_attempts'],
)

const Rule = object(
  'A rule',
  {
    when: { description: 'Expression over `task` and `result`' } as Described,
    transition: field('string', 'Transition that moves the task when it is truthy'),
  },
  ['when', 'transition'],
)

const OnEnter = object(
  'Work that entering the state starts; not of human and terminal states',
  {
    dispatch: Dispatch,
    retry: Retry,
    on_complete: field('array', 'Rules for a success, of which the first that matches moves the task', { items: Rule }),
    on_failure: field('string', 'Transition that moves the task once the last attempt has failed'),
  },
  ['dispatch'],
)

const item = <T>(id: string, { type, properties, required }: Record<string, unknown>) =>
  z.unknown().meta({ id, type, properties, required, additionalProperties: true } as never) as z.ZodType<T>

export const StateShape = item<WorkflowState>(
  'WorkflowState',
  object(
    'A state',
    {
      name: field('string', 'Name, unique in the workflow'),
      initial: field('boolean', 'Whether tasks begin here: exactly one state'),
      terminal: field('boolean', 'Whether entering it closes the task'),
      kind: field('string', '`human`: a state in which the task waits for people', { enum: ['human'] }),
      on_enter: OnEnter,
      stalled_after: field('number', 'Seconds after which a task that is still here is reported as stalled'),
    },
    ['name'],
  ),
)

export const TransitionShape = item<Transition>(
  'WorkflowTransition',
  object(
    'A transition',
    {
      name: field('string', 'Name, unique in the workflow'),
      from: field('array', 'States that it leads out of', { items: { type: 'string' } }),
      to: field('string', 'State that it leads into'),
      guard: field('object', 'Expression over `task`, `transition` and `principal` that has to be truthy', {
        additionalProperties: true,
      }),
      requires_approval: field('boolean', 'Whether somebody has to approve the move'),
    },
    ['name', 'from', 'to'],
  ),
)
