import { streamActivity } from '@muster/client/operations'
import { type QueryClient, useQueryClient } from '@tanstack/react-query'
import { api, every } from '#api.ts'
import { pause, readStream, useWhileVisible } from '#live.ts'
import { usePermissions } from '#projects.ts'

/** The first requests of a page come before the stream. */
const START_MS = 3000
/** Entries within this time make lists stale together. */
const GATHER_MS = 500

const POLL_MS = 10_000
const POLL_LIVE_MS = 60_000

/** Lists that an entry makes stale, by its kind. */
const STALE: Record<string, string[]> = {
  approval_created: ['approvals'],
  approval_resolved: ['approvals'],
  exception_created: ['exceptions', 'sessions'],
  schedule_fired: ['triggers', 'firings'],
}
const ALL = [...new Set(Object.values(STALE).flat())]

type Message = { kind: string } | { isLive: boolean } | { asks: true }

/** Projects whose activity this browser receives. */
const live = new Set<string>()

/** Interval of lists that the activity of a project makes stale: the fallback while there is no stream. */
export const activityInterval = (projectId: string) => (query: Parameters<ReturnType<typeof every>>[0]) =>
  every(live.has(projectId) ? POLL_LIVE_MS : POLL_MS)(query)

/**
 * Follows the activity of a project in all tabs of the browser until the signal is aborted: the tab that holds a lock
 * reads the stream and passes the entries on.
 */
function follow(projectId: string, cache: QueryClient, signal: AbortSignal): void {
  const name = `muster-activity-${projectId}`
  const channel = new BroadcastChannel(name)
  const stale = new Set<string>()
  let isReader = false
  let timer: ReturnType<typeof setTimeout> | undefined
  const markStale = (keys: readonly string[]) => {
    for (const key of keys) stale.add(key)
    if (stale.size === 0) return
    timer ??= setTimeout(() => {
      timer = undefined
      for (const key of stale) void cache.invalidateQueries({ queryKey: [key, projectId] })
      stale.clear()
    }, GATHER_MS)
  }
  const setLive = (isLive: boolean) => {
    if (isLive) live.add(projectId)
    else live.delete(projectId)
    // Entries before the stream.
    if (isLive) markStale(ALL)
  }
  const post = (message: Message) => channel.postMessage(message)
  channel.onmessage = ({ data }: MessageEvent<Message>) => {
    if ('asks' in data) {
      if (isReader) post({ isLive: live.has(projectId) })
    } else if ('isLive' in data) setLive(data.isLive)
    else markStale(STALE[data.kind] ?? [])
  }
  const change = (isLive: boolean) => {
    setLive(isLive)
    post({ isLive })
  }
  const read = () => {
    isReader = true
    return readStream(signal, {
      open: () => {
        change(true)
        return streamActivity(api, { project_id: projectId }, { signal })
      },
      onEvent: event => {
        if (event.event !== 'entry') return
        markStale(STALE[event.data.kind] ?? [])
        post({ kind: event.data.kind })
      },
      // Too many streams, or no connection: the lists are polled until the next attempt.
      onLost: () => change(false),
      reopenMs: POLL_MS,
    })
  }
  const start = async () => {
    post({ asks: true })
    await pause(START_MS, signal)
    await navigator.locks.request(name, { signal }, read)
  }
  start().catch(() => {})
  signal.addEventListener('abort', () => {
    clearTimeout(timer)
    live.delete(projectId)
    channel.close()
  })
}

/** Keeps the lists of a project up to date by its activity while the tab is visible. */
export function useActivity(projectId: string | undefined): void {
  const cache = useQueryClient()
  const isAllowed = usePermissions(projectId)(streamActivity) === true
  useWhileVisible(projectId, (id, signal) => follow(id, cache, signal), isAllowed)
}
