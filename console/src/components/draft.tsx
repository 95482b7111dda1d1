import { useMatch } from '@tanstack/react-router'
import { createContext, type Dispatch, type SetStateAction, useContext, useEffect, useRef, useState } from 'react'
import { draftKey, readDraft, writeDraft } from '#session/drafts.ts'

/**
 * Distinguishes equal forms of one view, such as one for each record of a list, by the ID of the record. Null: their input
 * is not kept.
 */
export const DraftScope = createContext<string | null>('')

export type Draft<T> = {
  value: T
  setValue: Dispatch<SetStateAction<T>>
  /** Whether the value was entered before a reload, or before the view was left. */
  isRestored: boolean
  /** Removes the stored input, which was sent or discarded. */
  forget: () => void
}

/**
 * State of an input that a person types. Unsent input survives a reload of the tab; the value `initial` is not stored.
 * @param name distinguishes the inputs of a view
 * @param stored returns the part of a value that may be stored: no password and no secret is
 */
export function useDraft<T>(name: string, initial: T, stored: (value: T) => T = value => value): Draft<T> {
  const scope = useContext(DraftScope)
  const address = useMatch({ strict: false, select: ({ pathname }) => pathname })
  const [first] = useState(initial)
  const [key] = useState(() => (scope === null ? null : draftKey(address, scope, name)))
  const [found] = useState(() => (key === null ? undefined : (readDraft(key) as T | undefined)))
  const [value, setValue] = useState(found ?? first)
  useEffect(() => {
    if (key === null) return
    const kept = stored(value)
    writeDraft(key, JSON.stringify(kept) === JSON.stringify(first) ? undefined : kept)
  }, [value])
  return {
    value,
    setValue,
    isRestored: found !== undefined,
    forget: () => {
      if (key !== null) writeDraft(key, undefined)
    },
  }
}

/**
 * Forgets a draft once it was sent: the form closes, or stays with the values that were saved.
 * @returns a function to call when the form is submitted
 */
export function useSent({ forget }: Draft<any>, { isPending, error }: { isPending?: boolean; error?: unknown }) {
  const isSent = useRef(false)
  useEffect(() => {
    if (error) isSent.current = false
    else if (isSent.current && isPending === false) forget()
  }, [error, isPending])
  useEffect(
    () => () => {
      if (isSent.current) forget()
    },
    [],
  )
  return () => {
    isSent.current = true
  }
}
