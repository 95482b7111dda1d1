const holds = new Set<object>()

const confirmLeaving = (event: Event): void => event.preventDefault()

/** Makes the browser require a confirmation before it leaves the page, until the returned function is called. */
export function confirmUnload(): () => void {
  const hold = {}
  holds.add(hold)
  window.addEventListener('beforeunload', confirmLeaving)
  return () => {
    holds.delete(hold)
    if (holds.size === 0) window.removeEventListener('beforeunload', confirmLeaving)
  }
}
