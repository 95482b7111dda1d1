import { containsFilter, equalsFilter } from '../../core/api/filters.ts'
import { type Operation, operation } from '../../core/api/operation.ts'
import { resource } from '../../core/api/resource.ts'
import { checkBinding } from '../../execution/agents/operations.ts'
import { COMPLETE_ACTION, createCompletion } from './completion.ts'
import { ChatInput, ChatPatch, chatKind } from './model.ts'
import { ChatCompletion, CompletionInput, completionEvents } from './openai-format.ts'

const tag = 'Chats'
const chats = resource(chatKind, { path: '/chats', tag })

export const chatOperations: Operation[] = [
  // chats_project serves the order, chats_ai_provider its filter.
  chats.list({ filters: { name: containsFilter('name'), ai_provider_id: equalsFilter('ai_provider_id') } }),
  chats.create({
    description: 'Without a provider the project needs a default model route, by which its completions go then.',
    body: ChatInput,
    raises: ['AI_PROVIDER_NOT_FOUND'],
    check: ({ body, tx, project }) => checkBinding(body, tx, project),
  }),
  chats.get(),
  chats.update({
    description:
      'Acts on the next completion. Taking the provider away takes the model with it, when that is cleared, too.',
    body: ChatPatch,
    raises: ['AI_PROVIDER_NOT_FOUND'],
    check: (next, { tx }) => checkBinding(next, tx, next.project_id),
  }),
  chats.remove({ description: 'Actors that it speaks for are linked to nothing from then on.' }),
  operation({
    id: 'createChatCompletion',
    command: ['chat', 'complete'],
    method: 'post',
    path: '/chat/completions',
    summary: 'Ask a model once, in the format of the OpenAI API',
    description:
      'A client of that API works with the base URL of this one. The target is a chat or an AI provider, named by its field or by `model`. Nothing is kept of what is said. With `stream` pieces come as `data:` lines that end with `[DONE]`; a failure ends them with an `error` in its place.',
    tag,
    action: COMPLETE_ACTION,
    alsoActions: ['documents:GetDocument', 'files:DownloadFile'],
    about: chatKind,
    body: CompletionInput,
    answers: { 200: ChatCompletion },
    stream: completionEvents,
    raises: [
      'SYSTEM_MESSAGE_NOT_ALLOWED',
      'CHAT_NOT_FOUND',
      'AI_PROVIDER_NOT_FOUND',
      'AI_PROVIDER_MISCONFIGURED',
      'AI_PROVIDER_ERROR',
      'OUTPUT_SCHEMA_STREAMING_UNSUPPORTED',
      'OUTPUT_SCHEMA_VALIDATION_FAILED',
      'INVALID_OUTPUT_SCHEMA',
      'FILE_NOT_FOUND',
      'GENERATION_FAILED',
      'PROJECT_PAUSED',
      'QUOTA_EXCEEDED',
      'QUOTA_UNENFORCEABLE',
      'RESOURCE_NOT_FOUND',
    ],
    transaction: false,
    run: createCompletion,
  }),
]
