import { useMemo, useState } from 'react'
import { parseObject, type Values } from '#components/schema-form.tsx'
import { jsonText } from '#json.ts'
import { type GraphKind, isEditable } from './kind.ts'

/** Steps that can be undone. */
const STEPS = 100
/** Pause after which input of the same kind is another step. */
const PAUSE_MS = 1000

type History = { past: string[]; future: string[]; group: string | null; at: number }

/**
 * A definition as JSON text, which is the state, and as the value that the graph shows. An invalid text leaves the value
 * unchanged.
 */
export function useDefinitionText(kind: GraphKind, text: string, first: string, onText: (text: string) => void) {
  const parsed = useMemo(() => parseObject(text), [text])
  const isValid = isEditable(kind, parsed)
  const [last, setLast] = useState<{ definition: Values; text: string }>({
    definition: (isValid ? parsed : parseObject(first)) ?? {},
    text: isValid ? text : first,
  })
  if (isValid && last.definition !== parsed) setLast({ definition: parsed, text })
  const [history, setHistory] = useState<History>({ past: [], future: [], group: null, at: 0 })
  const write = (next: string, group: string | null) => {
    if (next === text) return
    const at = Date.now()
    setHistory(before => {
      const isSame = group !== null && group === before.group && at - before.at < PAUSE_MS
      const past = isSame ? before.past : [...before.past, text].slice(-STEPS)
      return { past, future: [], group, at }
    })
    onText(next)
  }
  const go = (from: 'past' | 'future', to: 'past' | 'future') => {
    const next = history[from].at(-1)
    if (next === undefined) return
    setHistory(before => ({
      ...before,
      [from]: before[from].slice(0, -1),
      [to]: [...before[to], text],
      group: null,
    }))
    onText(next)
  }
  return {
    definition: isValid ? parsed : last.definition,
    isValid,
    write,
    /** Changes the definition; changes of one group in a row are one step. */
    edit: (definition: Values, group: string | null = null) => write(jsonText(definition), group),
    restore: () => write(last.text, null),
    undo: history.past.length > 0 ? () => go('past', 'future') : null,
    redo: history.future.length > 0 ? () => go('future', 'past') : null,
  }
}
