import { z } from 'zod'
import {
  authorizeCompletion,
  COMPLETE_ACTION,
  type CompletionFrames,
  prepareCompletion,
  streamCompletion,
} from '#conversation/chats/complete.ts'
import { chatKind } from '#conversation/chats/model.ts'
import { modelOf } from '#conversation/chats/run-completion.ts'
import { type FoundTarget, findCompletionTarget, findRouteTarget } from '#conversation/chats/target.ts'
import { type Context, type OperationResult, operation, result } from '#core/api/operation.ts'
import { raise } from '#core/base/errors.ts'
import { ignoredSettings } from '#execution/providers/ignored-params.ts'
import type { ModelAnswer } from '#execution/providers/model-messages.ts'
import { requireUnpaused } from '#identity/projects/pause.ts'
import { hasRemoteImages, loadAttachments } from './client-media.ts'
import { type ClientChatRequest, schemaOf } from './client-request.ts'
import { awaitFirstChunk, startingWithText } from './first-chunk.ts'
import { vendorToolsOf } from './hosted-tools.ts'
import type { ModelRef } from './models.ts'

/** Completions of chats, model routes and models of providers. */

type CompletionModel = Extract<ModelRef, { kind: 'chat' | 'route' | 'provider' }>

/** Formats a streamed completion by the model that is called first. `state.started` is set with the first bytes. */
export type StreamFormat = (model: string, state: { started: boolean }) => CompletionFrames

type CompletionCall = { model: CompletionModel; request: ClientChatRequest; stream: StreamFormat | null }

export const completionOperation = operation({
  id: 'createOpenAiCompletion',
  method: 'post',
  path: '/openai/v1/chat/completions',
  summary: 'Create a completion',
  tag: 'OpenAI',
  action: COMPLETE_ACTION,
  about: chatKind,
  body: z.custom<CompletionCall>(),
  answers: { 200: null },
  transaction: false,
  run: createCompletion,
})

function findTarget({ services, caller, body: { model } }: Context<unknown, CompletionCall>): Promise<FoundTarget> {
  if (model.kind === 'route') return findRouteTarget(services, caller, model.id)
  return findCompletionTarget(
    services,
    caller,
    model.kind === 'chat' ? { chat_id: model.id } : { ai_provider_id: model.id, model: model.model },
  )
}

/** Makes a completion: the answer as the body of the result, or a stream that has begun. */
async function createCompletion(context: Context<Record<string, never>, CompletionCall>): Promise<OperationResult> {
  const { request, stream } = context.body
  const found = await findTarget(context)
  const { target, chat } = found
  authorizeCompletion(context, found)
  const { temperature, top_p, seed, stop, ...vendor_settings } = request.settings
  const { format } = request
  const { services } = context
  const messages = await loadAttachments(services, target.project_id, request.messages, context.request.closed)
  // The target was read before the fetches, whose servers may be slow.
  if (hasRemoteImages(request.messages)) await requireUnpaused(services.pool, target.project_id)
  const prepared = await prepareCompletion(context, target, {
    messages,
    schema: schemaOf(format),
    request: {
      system: request.instructions ?? (chat?.instructions || null),
      tools: request.tools,
      tool_choice: request.tool_choice,
      output_schema: format.type === 'json_schema' ? format.schema : null,
      json: format.type === 'json_object',
      prompt_caching: false,
      temperature: temperature ?? null,
      top_p: top_p ?? null,
      seed: seed ?? null,
      stop: stop ?? null,
      max_output_tokens: request.max_output_tokens,
      vendor_settings,
      vendor_tools: vendorToolsOf(request.hosted),
      store: request.store ?? undefined,
    },
  })
  // Continues after a disconnect, because the call is billed.
  if (!stream) return result(200, await prepared.complete(new AbortController().signal))
  const state = { started: false }
  const streamed = streamCompletion(
    context,
    target,
    context.request.id,
    startingWithText(stream(modelOf(target), state), state),
    prepared,
  )
  await awaitFirstChunk(streamed.stream ?? raise('INTERNAL_ERROR'))
  state.started = true
  return streamed
}

/** Returns the answer of a completion that was not streamed. */
export const answerOf = ({ body }: OperationResult): ModelAnswer => body as ModelAnswer

/** Returns the settings that vendors ignored in the calls of an answer that was not streamed. */
export const ignoredBy = ({ body }: OperationResult): string[] => {
  const { notes, ignored_params } = (body ?? {}) as Pick<ModelAnswer, 'notes'> & { ignored_params?: string[] }
  return ignored_params ?? ignoredSettings([{ notes }])
}
