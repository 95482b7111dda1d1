import { z } from 'zod'
import { UsageTotals } from '../../../control/usage/totals.ts'
import type { WaitingGrant } from '../../../core/api/operation.ts'
import { type EventSchema, type EventStream, FailedEvent, streamEvent } from '../../../core/api/streams.ts'
import { GenerateResult } from '../request/turn-result.ts'

/** What the streams of turns say, for their description. */

const Call = z.object({
  tool_call_id: z.string().describe('Call, as the model named it'),
  tool_name: z.string().describe('Tool that is called'),
})

const whileTurnRuns = [
  streamEvent(
    'TurnStartedEvent',
    'started',
    'The turn, which begins',
    z.object({
      generation_id: z.string().nullable().describe('Generation of the turn; null for a completion of a chat'),
      trace_id: z.string().nullable().describe('Trace of the turn; null for a completion of a chat'),
      agent_version: z.int().nullable().optional().describe('Version of the agent, where an agent is run directly'),
    }),
  ),
  streamEvent(
    'TurnDeltaEvent',
    'delta',
    'A piece of text; those of the last step joined are the output',
    z.object({
      choices: z
        .array(
          z.object({
            index: z.int().describe('Always 0'),
            delta: z.object({ content: z.string().describe('The piece') }).describe('What is added'),
          }),
        )
        .describe('Answers; there is one'),
    }),
  ),
  streamEvent('TurnToolCallEvent', 'tool_call', 'A call of a tool that begins', Call),
  streamEvent(
    'TurnToolResultEvent',
    'tool_result',
    'A call of a tool that has ended',
    Call.extend({ ok: z.boolean().describe('Whether the call gave a result') }),
  ),
  streamEvent(
    'TurnStepRestartedEvent',
    'step_restarted',
    'A step whose worker was lost; its text so far is void',
    z.object({ step: z.int().describe('Number of the step, from 1') }),
  ),
]

/** Not of turns in conversations: their text is that of all steps. */
const stepSettled = streamEvent(
  'TurnStepEvent',
  'step',
  'A step that has settled; text of earlier steps ends here',
  z.object({
    step: z.int().describe('Number of the step, from 1'),
    finish_reason: z.string().nullable().describe('Why the model stopped'),
    usage: UsageTotals.nullable().describe('Tokens and cost of the step'),
  }),
)

/** The events of turns that end with a result of their own. `name` is that of the schema of any of them, less `Event`. */
export const turnEvents = (name: string, result: z.ZodType, more: readonly EventSchema[] = []): EventStream => ({
  name: `${name}Event`,
  events: [
    ...whileTurnRuns,
    ...more,
    streamEvent(`${name}PausedEvent`, 'requires_action', 'The turn, which waits for outputs of client tools', result),
    streamEvent(`${name}CompletedEvent`, 'completed', 'The turn, which has ended', result),
    FailedEvent,
  ],
  last: ['requires_action', 'completed', 'error'],
  resume: 'streamGeneration',
})

/** How a turn is waited for by reading its generation. */
export const turnWaiting = (byDefault: boolean): WaitingGrant => ({
  default: byDefault,
  done: ['completed'],
  failed: ['failed'],
  paused: ['requires_action'],
  poll: 'getGeneration',
})

/** Turns of agents that are run directly. */
export const agentTurnEvents = turnEvents('AgentTurn', GenerateResult, [stepSettled])

/** Turns by the ids of their generations, which may be those of conversations. */
export const anyTurnEvents = turnEvents('Turn', z.union([GenerateResult, z.record(z.string(), z.unknown())]), [
  stepSettled,
])
