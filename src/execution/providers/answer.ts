import type {
  LanguageModelV4Content,
  LanguageModelV4FinishReason,
  LanguageModelV4ToolCall,
  LanguageModelV4Usage,
  SharedV4ProviderMetadata,
  SharedV4Warning,
} from '@ai-sdk/provider'
import { storableText, storableValue, truncateChars } from '#core/base/storable-text.ts'
import { annotationsOf } from './annotations.ts'
import { parseModelArguments } from './exact-arguments.ts'
import type { ModelAnswer, VendorNote } from './model-messages.ts'
import { type Reported, reportedUsage, servedBy } from './reported-usage.ts'
import { answerText, isKept, vendorParts } from './vendor-parts.ts'
import { warningNotes } from './warnings.ts'

/** An answer without the target that gave it. */
export type RawAnswer = Omit<ModelAnswer, 'model' | 'ai_provider_id'>

/** What the last part of an answer says about the whole. */
export type AnswerEnd = {
  finishReason: LanguageModelV4FinishReason
  usage: LanguageModelV4Usage
  providerMetadata?: SharedV4ProviderMetadata
}

/**
 * Returns an answer in the terms of this service.
 * @throws an error for an answer without content and finish reason
 */
export function rawAnswer(
  content: readonly LanguageModelV4Content[],
  { finishReason, providerMetadata }: AnswerEnd,
  warnings: readonly SharedV4Warning[],
  reported: Reported,
): RawAnswer {
  const notes = [...warningNotes(warnings), ...(finishReason.raw === 'refusal' ? [refusalNote(providerMetadata)] : [])]
  const text = answerText(content)
  const reasoning = content.map(part => (part.type === 'reasoning' ? part.text : '')).join('')
  const calls = content.filter(part => part.type === 'tool-call').filter(call => !call.providerExecuted)
  const paused = finishReason.raw === 'pause_turn' && calls.length === 0
  // A response without text, calls and finish reason, such as a body without choices, is a failure.
  const isEmpty = text === '' && calls.length === 0
  if (isEmpty && finishReason.raw === undefined) throw new Error('the response is empty')
  const vendor_parts = vendorParts(content)
  const annotations = annotationsOf(content)
  return {
    text: storableText(text),
    ...((paused || isKept(vendor_parts)) && { vendor_parts }),
    ...(paused && { paused }),
    ...(isEmpty && { vendor_reason: finishReason.raw }),
    tool_calls: calls.map(toolCall),
    finish_reason: FINISH.has(finishReason.unified) ? (finishReason.unified as ModelAnswer['finish_reason']) : 'other',
    usage: reportedUsage(reported),
    ...servedBy(reported),
    ...(notes.length > 0 && { notes }),
    ...(annotations.length > 0 && { annotations }),
    ...(reasoning && { reasoning: storableText(reasoning) }),
  }
}

/** Returns the note of an answer that ends with a refusal, with the details that the vendor gives. */
function refusalNote(metadata: SharedV4ProviderMetadata | undefined): VendorNote {
  const details = (metadata?.anthropic?.stopDetails ?? {}) as { category?: unknown; explanation?: unknown }
  const text = (value: unknown) => (typeof value === 'string' ? storableText(truncateChars(value, 500)) : null)
  return {
    kind: 'refused',
    category: text(details.category),
    message: text(details.explanation) ?? 'the vendor refused to answer',
  }
}

function toolCall({ toolCallId, toolName, input }: LanguageModelV4ToolCall): ModelAnswer['tool_calls'][number] {
  const call = { id: storableText(toolCallId), tool_name: storableText(toolName) }
  try {
    return { ...call, args: storableValue(parseModelArguments(input)) }
  } catch {
    return { ...call, args: storableText(input), args_error: 'the arguments are not valid JSON' }
  }
}

const FINISH = new Set(['stop', 'length', 'content-filter', 'tool-calls'])
