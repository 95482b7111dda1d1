import { z } from 'zod'
import { type Context, itemOperation, type Operation } from '#core/api/operation.ts'
import { raise } from '#core/base/errors.ts'
import { parseExactJson } from '#core/base/exact-json.ts'
import type { Services } from '#core/base/services.ts'
import { pathNumber } from '#core/resources/version.ts'
import { agentKind } from '#execution/agents/model.ts'
import type { ModelMessage, PromptMessage } from '#execution/providers/model-messages.ts'
import { type SentRequest, withReference } from '../journal/sent-request.ts'
import { type GenerationRow, generationKind, Knowledge } from '../model.ts'
import { stepMessages } from '../request/turn-result.ts'
import { readSteps } from './file.ts'
import { findStepRequest } from './store.ts'

const object = z.looseObject({})

const ofAgent = 'Requires `agents:GetAgent`.'

const StepRequest = z
  .object({
    generation_id: z.string(),
    step: z.int().describe('Number of the step, from 1'),
    ai_provider_id: z.string().nullable().describe('ID of the AI provider that answered. Null without an answer.'),
    model: z.string().nullable().describe('Requested model. Null without an answer.'),
    messages: z
      .array(object)
      .describe(
        'Messages in the order sent: the summary of older ones, the history with additions of the client before its last user message, and the earlier steps of the turn. Without the message of search results.',
      ),
    knowledge: Knowledge.nullable().describe(
      'Search results whose texts preceded the last user message. Null without a search.',
    ),
    omitted_messages: z
      .int()
      .describe('Number of messages of the input that were left out, because of their number or size'),
    system: z.string().nullable().describe(`System prompt. Null without one. ${ofAgent}`),
    tools: z.array(object).nullable().describe(`Tools offered to the model, with descriptions and schemas. ${ofAgent}`),
    tool_choice: z.unknown().describe(`Choice of tools. Null for the default of the vendor. ${ofAgent}`),
    output_schema: object.nullable().describe(`JSON Schema of the answer. Null without one. ${ofAgent}`),
    settings: object.nullable().describe(`Settings that were set, such as \`temperature\`. ${ofAgent}`),
    vendor_tools: z
      .array(object)
      .nullable()
      .describe(`Tools that the vendor runs itself. Null without any. ${ofAgent}`),
    provider_options: object.nullable().describe(`Options by provider type. Null without any. ${ofAgent}`),
    notes: z.array(object).nullable().describe('Changes of the request for its vendor. Null if there were none.'),
    is_shortened: z
      .boolean()
      .describe(
        'Whether tools are listed without descriptions and schemas, because the request was longer than 256 KiB',
      ),
  })
  .meta({ id: 'StepRequest' })

/** Generations authorized as their trace. */
const generationAsTrace = {
  ...generationKind,
  authorize: (row: GenerationRow) => ({ type: 'trace', id: row.trace_id }),
}

export const getStepRequest: Operation = itemOperation(generationAsTrace, {
  id: 'getGenerationStepRequest',
  command: ['generations', 'get-step-request'],
  method: 'get',
  path: '/generations/{generation_id}/steps/{step}/request',
  summary: 'Get the model request of a step',
  description:
    'Returns what the step sent to its model, before its conversion for the vendor; what the agent defines is null without permission to get the agent. Not available while the model answers, for erased or unstored content, and for agents of other projects.',
  tag: 'Generations',
  action: 'traces:GetTrace',
  alsoActions: ['agents:GetAgent'],
  answers: { 200: StepRequest },
  raises: ['GENERATION_CONTENT_UNAVAILABLE', 'RESOURCE_NOT_FOUND', 'FILE_STORAGE_MISCONFIGURED'],
  async run(context) {
    const { services, resource, params } = context
    const { ofAgent, ...request } = await readStepRequest(services, resource, pathNumber('step', params.step))
    return { ...request, ...((await mayGetAgent(context)) ? ofAgent : hidden(ofAgent)) }
  },
})

/** Whether the caller may get the agent of a turn; of a deleted agent, every agent of the project. */
async function mayGetAgent({
  db,
  resource,
  allowed,
}: Pick<Context<unknown, unknown, GenerationRow>, 'db' | 'resource' | 'allowed'>) {
  const row = await agentKind.find(db, resource.agent_id)
  return allowed('agents:GetAgent', { kind: agentKind, ...(row ? { row } : { project_id: resource.project_id }) })
}

const hidden = (fields: object) => Object.fromEntries(Object.keys(fields).map(name => [name, null]))

/**
 * Returns a stored request, with the fields that the agent defines in `ofAgent`.
 * @throws GENERATION_CONTENT_UNAVAILABLE, RESOURCE_NOT_FOUND, FILE_STORAGE_MISCONFIGURED
 */
async function readStepRequest(services: Services, generation: GenerationRow, n: number) {
  const { id, step_count, input, knowledge } = generation
  const stored = await findStepRequest(services.pool, id, n)
  // Of a step without an answer nothing but its own request shows that there was one.
  if (n > step_count && stored?.n !== n)
    raise('RESOURCE_NOT_FOUND', { message: `Step ${n} of generation ${id} not found`, meta: { id } })
  const steps = await readSteps(services, generation)
  if (!stored?.body || !input || steps.length < Math.min(n, step_count))
    raise('GENERATION_CONTENT_UNAVAILABLE', { meta: { generation_id: id } })
  const { opening, reference, omitted, is_shortened, ...ofAgent } = parseExactJson(stored.body) as SentRequest
  const history = input.filter((_, position) => !omitted.some(([from, to]) => position >= from && position < to))
  const answer = steps.find(step => step.n === n)
  return {
    generation_id: id,
    step: n,
    ai_provider_id: answer?.ai_provider_id ?? null,
    model: answer?.model ?? null,
    messages: [
      ...opening,
      ...withReference<ModelMessage | PromptMessage>(history, reference),
      ...steps.filter(step => step.n < n).flatMap(stepMessages),
    ],
    knowledge,
    omitted_messages: input.length - history.length,
    notes: answer?.notes ?? null,
    is_shortened,
    ofAgent,
  }
}
