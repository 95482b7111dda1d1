import type { KeyboardEvent } from 'react'

/** Returns the handler of a field for messages: Enter sends, with Shift it begins a line. */
export const sendOnEnter = (send: () => void) => (event: KeyboardEvent) => {
  if (event.key !== 'Enter' || event.shiftKey || event.nativeEvent.isComposing) return
  event.preventDefault()
  send()
}
