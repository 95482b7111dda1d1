import type { Values } from '#components/schema-form.tsx'
import { isObject } from '#json.ts'

/** A place in a JSON text that may be incomplete. */
export type JsonCursor = {
  /** Path of the object, list or value at the place. */
  path: (string | number)[]
  /** Whether the name of a field is written there. */
  isKey: boolean
  /** The written text so far, without quotes; it begins and ends with its quotes. */
  written: string
  begin: number
  end: number
  isQuoted: boolean
  /** Fields of the innermost object before the place, with their values that are texts. */
  siblings: Values
}

type Frame = { isList: boolean; index: number; key: string; isKey: boolean; siblings: Values }

const WORD = /[\w.+-]/

/** Returns the end of a text in quotes that begins at a place; the length of the whole text if it does not end. */
function endOfText(text: string, begin: number): number {
  let at = begin + 1
  while (at < text.length && text[at] !== '"' && text[at] !== '\n') at += text[at] === '\\' ? 2 : 1
  return Math.min(at, text.length)
}

const unquoted = (text: string): string => {
  try {
    return String(JSON.parse(`"${text}"`))
  } catch {
    return text
  }
}

/** Enters, leaves and continues the objects and lists of a text. */
function step(frames: Frame[], sign: string): void {
  const frame = frames.at(-1)
  if (sign === '{' || sign === '[')
    frames.push({ isList: sign === '[', index: 0, key: '', isKey: sign === '{', siblings: {} })
  else if (sign === '}' || sign === ']') frames.pop()
  else if (!frame) return
  else if (sign === ':') frame.isKey = false
  else if (sign === ',' && frame.isList) frame.index++
  else if (sign === ',') frame.isKey = true
}

/** Reads a JSON text up to a place. */
export function cursorAt(text: string, place: number): JsonCursor {
  const frames: Frame[] = []
  let written = ''
  let begin = place
  let isQuoted = false
  for (let at = 0; at < place; at++) {
    const sign = text[at]
    if (sign === '"') {
      const end = endOfText(text, at)
      if (end >= place) {
        written = text.slice(at + 1, place)
        begin = at
        isQuoted = true
        break
      }
      const frame = frames.at(-1)
      const value = unquoted(text.slice(at + 1, end))
      if (frame?.isKey) {
        frame.key = value
        frame.siblings[value] ??= null
      } else if (frame && !frame.isList) frame.siblings[frame.key] = value
      at = end
    } else if (WORD.test(sign)) {
      let end = at
      while (end < place && WORD.test(text[end])) end++
      if (end === place) {
        written = text.slice(at, place)
        begin = at
      }
      at = end - 1
    } else step(frames, sign)
  }
  const last = frames.at(-1)
  const rest = isQuoted ? /^[\w.:-]*"/.exec(text.slice(place, place + 200)) : null
  return {
    path: frames.flatMap<string | number>(({ isList, index, isKey, key }) => (isList ? [index] : isKey ? [] : [key])),
    isKey: last?.isKey ?? false,
    written,
    begin,
    end: place + (rest?.[0].length ?? 0),
    isQuoted,
    siblings: last?.siblings ?? {},
  }
}

/** Returns the schema of a place in a value. */
export const schemaAt = (schema: unknown, path: readonly (string | number)[]): Values | undefined =>
  path.reduce<Values | undefined>(
    (own, key) => {
      const next = typeof key === 'number' ? own?.items : isObject(own?.properties) ? own.properties[key] : undefined
      return isObject(next) ? next : undefined
    },
    isObject(schema) ? schema : undefined,
  )
