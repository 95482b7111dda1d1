import { tokenMeasure } from '../chunks/token-measure.ts'
import type { EmbeddingModel } from './model.ts'

/** Most tokens of a text for the embedding models of OpenAI and Amazon (November 2026); the tokens of OpenAI's are counted. */
const MAX_TOKENS = 8191

/** OpenAI's models, whose encoding is known. */
const OPENAI_MODEL = /^text-embedding-(3-|ada-)/

/**
 * Returns the part of a text that an embedding model takes: counted in its tokens where its encoding is known, otherwise by a
 * cautious estimate. Ollama cuts texts itself.
 */
export async function limitTokens(text: string, { provider, model }: EmbeddingModel): Promise<string> {
  // A token has at least one byte.
  if (provider === 'ollama' || Buffer.byteLength(text) <= MAX_TOKENS) return text
  if (!OPENAI_MODEL.test(model)) return text.slice(0, estimatedEnd(text))
  const measure = await tokenMeasure(text, 'cl100k_base')
  await measure.measure?.(0, MAX_TOKENS + 1)
  return text.slice(0, measure.offset(MAX_TOKENS))
}

/** Returns the offset after MAX_TOKENS estimated tokens. */
function estimatedEnd(text: string): number {
  let tokens = 0
  let end = 0
  for (const character of text) {
    tokens += estimatedTokensOf(character.codePointAt(0) as number)
    if (tokens > MAX_TOKENS) break
    end += character.length
  }
  return end
}

/** Tokens of a character in common encodings, rather too many. */
function estimatedTokensOf(code: number): number {
  const isLetter = code === 0x20 || (code >= 0x41 && code <= 0x5a) || (code >= 0x61 && code <= 0x7a)
  if (code < 0x80) return isLetter ? 0.5 : 1
  if (code < 0x800) return 1.2
  // Chinese, Japanese, Korean.
  if ((code >= 0x3000 && code < 0xa000) || (code >= 0xac00 && code < 0xd800)) return 2
  return code < 0x10000 ? 3 : 4
}
