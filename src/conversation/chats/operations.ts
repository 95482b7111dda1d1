import { containsFilter, equalsFilter } from '#core/api/filters.ts'
import { type Operation, operation } from '#core/api/operation.ts'
import { resource } from '#core/resources/resource.ts'
import { checkBinding, checkBindingFields } from '#execution/agents/check.ts'
import { COMPLETE_ACTION } from './complete.ts'
import { createCompletion } from './completion.ts'
import { ChatInput, ChatPatch, chatKind } from './model.ts'
import { ChatCompletion, CompletionInput, completionEvents } from './openai-format.ts'

const tag = 'Chats'
const chats = resource(chatKind, { path: '/chats', tag })

export const chatOperations: Operation[] = [
  // Order by chats_project, filter by chats_ai_provider.
  chats.list({ filters: { name: containsFilter('name'), ai_provider_id: equalsFilter('ai_provider_id') } }),
  chats.create({
    description: 'A chat without an AI provider uses the default model route of the project, which must exist.',
    body: ChatInput,
    validate: ({ body }) => checkBindingFields(body),
    raises: ['AI_PROVIDER_NOT_FOUND'],
    check: ({ body, tx, project }) => checkBinding(body, tx, project),
  }),
  chats.get(),
  chats.update({
    description: 'Takes effect with the next completion. To remove the AI provider, model must be null too.',
    body: ChatPatch,
    raises: ['AI_PROVIDER_NOT_FOUND'],
    check: (next, { tx }) => checkBinding(next, tx, next.project_id),
  }),
  chats.remove({ description: 'Actors linked to the chat lose the link.' }),
  operation({
    id: 'createChatCompletion',
    command: ['chat', 'complete'],
    method: 'post',
    path: '/chat/completions',
    summary: 'Create a chat completion',
    description:
      'Compatible with clients of the OpenAI API: set their base URL to this one. The target is a chat or an AI provider, given by its field or by `model`. No content is stored. With `stream`, chunks are sent as `data:` lines followed by `[DONE]`; a failure is sent as `error` instead of `[DONE]`.',
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
