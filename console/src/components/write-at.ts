import { flushSync } from 'react-dom'

/**
 * Changes the text of a field and puts the focus and the cursor there, before the next key is handled: keys that are pressed
 * fast would be written elsewhere.
 */
export function writeAt(field: HTMLTextAreaElement | null, cursor: number, write: () => void): void {
  flushSync(write)
  field?.focus()
  field?.setSelectionRange(cursor, cursor)
}
