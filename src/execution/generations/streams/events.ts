import { z } from 'zod'
import { UsageTotals } from '#control/usage/totals.ts'
import type { WaitingGrant } from '#core/api/operation.ts'
import { type EventSchema, type EventStream, FailedEvent, streamEvent } from '#core/api/streams.ts'
import { Annotations } from '../model.ts'
import { GenerateResult } from '../request/turn-result.ts'

/** Event schemas of turn streams. */

const Call = z.object({
  tool_call_id: z.string().describe('ID of the tool call, from the model'),
  tool_name: z.string().describe('Name of the tool'),
  label: z.string().optional().describe('Activity for end users, if `end_user_activity` of the agent is `labels`'),
})

const progressEvents = [
  streamEvent(
    'TurnStartedEvent',
    'started',
    'Turn started',
    z.object({
      generation_id: z.string().nullable().describe('ID of the generation. Null for chat replies.'),
      trace_id: z.string().nullable().describe('ID of the trace. Null for chat replies.'),
      agent_version: z.int().nullable().optional().describe('Version of the agent, for turns outside conversations'),
    }),
  ),
  streamEvent(
    'TurnDeltaEvent',
    'delta',
    'Part of the text; the concatenated parts of the last step are the output',
    z.object({
      choices: z
        .array(
          z.object({
            index: z.int().describe('Always 0'),
            delta: z.object({ content: z.string().describe('Text to append') }).describe('Change of the output'),
          }),
        )
        .describe('List with one entry'),
    }),
  ),
  streamEvent('TurnToolCallEvent', 'tool_call', 'Tool call started', Call),
  streamEvent(
    'TurnToolResultEvent',
    'tool_result',
    'Tool call ended',
    Call.extend({ ok: z.boolean().describe('Whether the call succeeded') }),
  ),
  streamEvent(
    'TurnStepRestartedEvent',
    'step_restarted',
    'Step restarted after a lost worker; its text so far is void',
    z.object({ step: z.int().describe('Number of the step, from 1') }),
  ),
]

/** Not in conversations, whose text is the text of all steps. */
const stepEvent = streamEvent(
  'TurnStepEvent',
  'step',
  'Step settled; later text belongs to the next step',
  z.object({
    step: z.int().describe('Number of the step, from 1'),
    finish_reason: z.string().nullable().describe('Finish reason of the model'),
    usage: UsageTotals.nullable().describe('Tokens and cost of the step'),
    annotations: Annotations.optional().describe('Web pages that the text of the step cites. Absent without any.'),
    logprobs: z
      .array(z.record(z.string(), z.unknown()))
      .optional()
      .describe('Probabilities of the tokens, for clients of the OpenAI API that request them'),
  }),
)

/** Returns the stream events of turns with a specific result. `name` is the prefix of the schema ids. */
export const turnEvents = (name: string, result: z.ZodType, more: readonly EventSchema[] = []): EventStream => ({
  name: `${name}Event`,
  events: [
    ...progressEvents,
    ...more,
    streamEvent(`${name}PausedEvent`, 'requires_action', 'Turn paused until tool outputs are submitted', result),
    streamEvent(`${name}CompletedEvent`, 'completed', 'Turn completed', result),
    FailedEvent,
  ],
  last: ['requires_action', 'completed', 'error'],
  resume: 'streamGeneration',
})

/** Describes how to wait for a turn by polling its generation. */
export const turnWaiting = (byDefault: boolean): WaitingGrant => ({
  default: byDefault,
  running: ['pending', 'in_progress'],
  done: ['completed'],
  failed: ['failed'],
  paused: ['requires_action'],
  poll: 'getGeneration',
})

/** Events of agent turns outside conversations. */
export const agentTurnEvents = turnEvents('AgentTurn', GenerateResult, [stepEvent])

/** Events of turns in and outside conversations, streamed by generation id. */
export const anyTurnEvents = turnEvents('Turn', z.union([GenerateResult, z.record(z.string(), z.unknown())]), [
  stepEvent,
])
