import { notifyManager } from '@tanstack/react-query'
import { useEffect, useState } from 'react'

/** Time for which a hidden tab keeps its stream. */
const HIDDEN_MS = 60_000
/** Pause before a lost stream is opened again. */
const REOPEN_MS = 5000

/** Whether the tab has been hidden for so long that it gives up its stream. */
function useHidden(): boolean {
  const [isHidden, setHidden] = useState(false)
  useEffect(() => {
    let timer: ReturnType<typeof setTimeout> | undefined
    const note = () => {
      clearTimeout(timer)
      if (document.hidden) timer = setTimeout(() => setHidden(true), HIDDEN_MS)
      else setHidden(false)
    }
    document.addEventListener('visibilitychange', note)
    return () => {
      clearTimeout(timer)
      document.removeEventListener('visibilitychange', note)
    }
  }, [])
  return isHidden
}

/**
 * Reads the stream of a record while its view is visible, and opens it again after it is lost. Returns whether it is
 * live. `open`, `apply` and `onLost` may depend on `id` only: `apply` writes each event into the query cache, `onLost`
 * makes the record stale.
 */
export function useStream<Event>(
  id: string,
  {
    open,
    apply,
    onLost,
    enabled = true,
  }: {
    open: (signal: AbortSignal) => AsyncIterable<Event>
    apply: (event: Event) => void
    onLost: () => void
    enabled?: boolean
  },
): boolean {
  const [isLive, setLive] = useState(false)
  const isHidden = useHidden()
  const isOn = enabled && !isHidden
  useEffect(() => {
    if (!isOn) return
    const controller = new AbortController()
    let retry: ReturnType<typeof setTimeout> | undefined
    let arrived: Event[] = []
    let frame = 0
    // What arrives is drawn once a frame.
    const draw = () => {
      cancelAnimationFrame(frame)
      frame = 0
      const events = arrived
      arrived = []
      notifyManager.batch(() => events.forEach(apply))
    }
    const read = async () => {
      try {
        for await (const event of open(controller.signal)) {
          setLive(true)
          arrived.push(event)
          frame ||= requestAnimationFrame(draw)
        }
      } catch {
        // The record says why: it is read again.
      }
      draw()
      if (controller.signal.aborted) return
      setLive(false)
      onLost()
      retry = setTimeout(() => void read(), REOPEN_MS * (1 + Math.random() * 0.2))
    }
    void read()
    return () => {
      controller.abort()
      clearTimeout(retry)
    }
  }, [id, isOn])
  return isLive
}
