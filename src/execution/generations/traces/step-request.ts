import { z } from 'zod'
import { itemOperation, type Operation } from '#core/api/operation.ts'
import { raise } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import { pathNumber } from '#core/resources/version.ts'
import type { ModelMessage, PromptMessage } from '#execution/providers/model-messages.ts'
import { requestOfStep, withReference } from '../journal/sent-request.ts'
import { type GenerationRow, generationKind } from '../model.ts'
import { stepMessages } from '../request/turn-result.ts'
import { readSteps } from './file.ts'
import { findSentRequests } from './store.ts'

const object = z.looseObject({})

const StepRequest = z
  .object({
    generation_id: z.string(),
    step: z.int().describe('Number of the step, from 1'),
    ai_provider_id: z.string().nullable().describe('ID of the AI provider that answered. Null without an answer.'),
    model: z.string().nullable().describe('Requested model. Null without an answer.'),
    system: z.string().nullable().describe('System prompt. Null without one.'),
    messages: z
      .array(object)
      .describe(
        'Messages in the order sent: the summary of older ones, the history with knowledge before its last user message, and the earlier steps of the turn',
      ),
    knowledge: z.string().nullable().describe('Text of the message with the search results. Null without any.'),
    omitted_messages: z
      .int()
      .describe('Number of messages of the input that were left out, because of their number or size'),
    tools: z.array(object).describe('Tools offered to the model, with descriptions and schemas'),
    tool_choice: z.unknown().describe('Choice of tools. Null for the default of the vendor.'),
    output_schema: object.nullable().describe('JSON Schema of the answer. Null without one.'),
    settings: object.describe('Settings that were set, such as `temperature`'),
    vendor_tools: z.array(object).nullable().describe('Tools that the vendor runs itself. Null without any.'),
    provider_options: object.nullable().describe('Options by provider type. Null without any.'),
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
    'Returns what the step sent to its model: system prompt, messages with knowledge, tools and settings, as they were before the vendor format. Not available while the model answers, for erased or unstored content, and for agents of other projects.',
  tag: 'Generations',
  action: 'traces:GetTrace',
  answers: { 200: StepRequest },
  raises: ['GENERATION_CONTENT_UNAVAILABLE', 'RESOURCE_NOT_FOUND', 'FILE_STORAGE_MISCONFIGURED'],
  run: ({ services, resource, params }) => readStepRequest(services, resource, pathNumber('step', params.step)),
})

/** @throws GENERATION_CONTENT_UNAVAILABLE, RESOURCE_NOT_FOUND, FILE_STORAGE_MISCONFIGURED */
async function readStepRequest(
  services: Services,
  generation: GenerationRow,
  n: number,
): Promise<z.output<typeof StepRequest>> {
  const { id, step_count } = generation
  const stored = await findSentRequests(services.pool, id)
  const request = requestOfStep(stored ?? [], n, n <= step_count)
  if (!request && n > step_count)
    raise('RESOURCE_NOT_FOUND', { message: `Step ${n} of generation ${id} not found`, meta: { id } })
  const steps = await readSteps(services, generation)
  if (!request || !generation.input || steps.length < Math.min(n, step_count))
    raise('GENERATION_CONTENT_UNAVAILABLE', { meta: { generation_id: id } })
  const { opening, reference, has_knowledge, omitted, ...sent } = request
  const history = generation.input.filter(
    (_, position) => !omitted.some(([from, to]) => position >= from && position < to),
  )
  const answer = steps.find(step => step.n === n)
  return {
    generation_id: id,
    step: n,
    ai_provider_id: answer?.ai_provider_id ?? null,
    model: answer?.model ?? null,
    ...sent,
    messages: [
      ...opening,
      ...withReference<ModelMessage | PromptMessage>(history, reference),
      ...steps.filter(step => step.n < n).flatMap(stepMessages),
    ],
    knowledge: has_knowledge ? (reference[0].content as string) : null,
    omitted_messages: generation.input.length - history.length,
    notes: answer?.notes ?? null,
  }
}
