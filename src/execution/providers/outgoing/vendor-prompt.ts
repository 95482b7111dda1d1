import type {
  LanguageModelV4CallOptions,
  LanguageModelV4FilePart,
  LanguageModelV4Message,
  LanguageModelV4Prompt,
  LanguageModelV4ToolResultPart,
} from '@ai-sdk/provider'
import type { ModelInput } from '../model.ts'
import type { AttachedFile, PromptMessage, TextPart, ToolResultPart } from '../model-messages.ts'
import type { ModelClient } from '../models.ts'
import { ACKNOWLEDGEMENT } from './messages.ts'
import type { OutgoingProfile } from './profile.ts'
import { contentWithMedia, mediaNote } from './result-media.ts'

/**
 * Converts messages for the vendor's package. Consecutive results are joined, which some vendors require. `changing` is the
 * index of the first message that changes with each turn.
 */
export function vendorPrompt(
  messages: readonly PromptMessage[],
  rules: MediaRules,
): { messages: LanguageModelV4Prompt; changing: number | null } {
  const prompt: LanguageModelV4Message[] = []
  let changing: number | null = null
  let media: LanguageModelV4FilePart[] = []
  for (const message of messages) {
    if (message.role === 'tool') {
      const content = message.content.map(part => toolResult(part, rules, media))
      const last = prompt.at(-1)
      if (last?.role === 'tool') last.content.push(...content)
      else prompt.push({ role: 'tool', content })
      continue
    }
    prompt.push(...mediaMessages(media, rules))
    media = []
    if (message.role === 'user') {
      const { content } = message
      if (message.changes) changing ??= prompt.length
      prompt.push({ role: 'user', content: typeof content === 'string' ? [textPart(content)] : userParts(content) })
      continue
    }
    prompt.push({ role: 'assistant', content: assistantParts(message) })
  }
  return { messages: [...prompt, ...mediaMessages(media, rules)], changing }
}

function mediaMessages(media: LanguageModelV4FilePart[], { userAfterResults }: MediaRules): LanguageModelV4Message[] {
  if (media.length === 0) return []
  const message = { role: 'user' as const, content: media }
  return userAfterResults ? [message] : [{ role: 'assistant', content: [textPart(ACKNOWLEDGEMENT)] }, message]
}

/** Where media of results are sent: in the results, or after them; and the inputs of the model, null if unknown. */
type MediaRules = Pick<ModelClient, 'mediaInResults'> &
  Pick<OutgoingProfile, 'userAfterResults'> & { inputs: ReadonlySet<ModelInput> | null }

/** Converts a result. Media that the vendor does not take in results are added to `media`, which follows them. */
function toolResult(
  { tool_call_id: toolCallId, tool_name: toolName, result, error }: ToolResultPart,
  { mediaInResults, inputs }: MediaRules,
  media: LanguageModelV4FilePart[],
): LanguageModelV4ToolResultPart {
  const about = { type: 'tool-result' as const, toolCallId, toolName }
  if (error) return { ...about, output: { type: 'error-json', value: { error } as never } }
  if (typeof result === 'string') return { ...about, output: { type: 'text', value: result } }
  const items = contentWithMedia(result)
  if (!items) return { ...about, output: { type: 'json', value: (result ?? null) as never } }
  const value = items.filter(hasContent).map(item => {
    if (item.type === 'text') return item
    const isTaken = inputs === null || inputs.has(inputOf(item.media_type))
    if (!isTaken) return textPart(mediaNote(item.media_type, item.data_base64))
    const file = filePart(item.media_type, item.data_base64)
    if (mediaInResults) return file
    media.push(file)
    return textPart(`[${item.media_type} in the next message]`)
  })
  const texts = value.filter(each => each.type === 'text')
  return texts.length === value.length
    ? { ...about, output: { type: 'text', value: texts.map(({ text }) => text).join('\n') } }
    : { ...about, output: { type: 'content', value } }
}

/** Vendors refuse blank blocks of a result. */
const hasContent = (item: { type: string; text?: string }, _: number, items: readonly object[]): boolean =>
  items.length === 1 || item.text === undefined || item.text.trim() !== ''

const inputOf = (mediaType: string): ModelInput =>
  mediaType === 'application/pdf' ? 'pdf' : mediaType.startsWith('audio/') ? 'audio' : 'image'

const filePart = (mediaType: string, data: string, filename?: string) => ({
  type: 'file' as const,
  data: { type: 'data' as const, data },
  mediaType,
  filename,
})

function assistantParts({ content, vendor }: Extract<PromptMessage, { role: 'assistant' }>): AssistantPart[] {
  const parts = typeof content === 'string' ? [textPart(content)] : content
  const calls = parts
    .filter(part => part.type === 'tool_call')
    .map(part => ({
      type: 'tool-call' as const,
      toolCallId: part.tool_call_id,
      toolName: part.tool_name,
      input: part.args,
    }))
  if (!vendor) return [...parts.filter(part => part.type === 'text'), ...calls]
  return vendor.parts.flatMap((part): AssistantPart[] => {
    const providerOptions = part.metadata as LanguageModelV4CallOptions['providerOptions']
    if (part.type === 'reasoning') return [{ type: 'reasoning', text: part.text, providerOptions }]
    if (part.type === 'text') return part.text.trim() === '' ? [] : [{ ...textPart(part.text), providerOptions }]
    if (part.type === 'tool_call') return calls[part.position] ? [{ ...calls[part.position], providerOptions }] : []
    const about = { toolCallId: part.id, toolName: part.name, providerOptions }
    if (part.type === 'vendor_call') return [{ type: 'tool-call', ...about, input: part.input, providerExecuted: true }]
    const output = { type: part.is_error ? 'error-json' : 'json', value: part.result } as ToolOutput
    return [{ type: 'tool-result', ...about, output }]
  })
}

type ToolOutput = LanguageModelV4ToolResultPart['output']
type AssistantPart = Extract<LanguageModelV4Message, { role: 'assistant' }>['content'][number]

const textPart = (text: string) => ({ type: 'text' as const, text })

const userParts = (parts: readonly (TextPart | AttachedFile)[]) =>
  parts.map(part =>
    part.type === 'text' ? textPart(part.text) : filePart(part.media_type, part.data_base64, part.filename),
  )
