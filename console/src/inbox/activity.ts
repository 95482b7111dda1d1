import type { ActivityEntry } from '@muster/client'
import { streamActivity } from '@muster/client/operations'
import { type QueryClient, useQueryClient } from '@tanstack/react-query'
import { useNavigate } from '@tanstack/react-router'
import { api, every } from '#api.ts'
import { pause, readStream, useWhileVisible } from '#live.ts'
import { useMe, usePermissions } from '#projects.ts'
import { hasNotices, noticePermission, useNoticeChoice } from './notices.ts'

/** The first requests of a page come before the stream. */
const START_MS = 3000
/** Entries within this time make lists stale together. */
const GATHER_MS = 500

const POLL_MS = 10_000
/** Time since the loss of a stream after which its entries are skipped, such as after a night. */
const RESUME_MS = 300_000
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
 * reads the stream and passes the entries on. `onEntry` is called in that tab alone.
 */
function follow(
  projectId: string,
  cache: QueryClient,
  onEntry: (entry: ActivityEntry) => void,
  signal: AbortSignal,
): void {
  const name = `muster-activity-${projectId}`
  const channel = new BroadcastChannel(name)
  const stale = new Set<string>()
  let isReader = false
  let lastEventId: string | undefined
  let lostAt = 0
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
        const isRecent = lastEventId !== undefined && Date.now() - lostAt < RESUME_MS
        return streamActivity(api, { project_id: projectId }, { signal, ...(isRecent ? { lastEventId } : {}) })
      },
      onEvent: event => {
        if (event.event !== 'entry') return
        lastEventId = event.id ?? lastEventId
        markStale(STALE[event.data.kind] ?? [])
        post({ kind: event.data.kind })
        onEntry(event.data)
      },
      // Too many streams, or no connection: the lists are polled until the next attempt.
      onLost: () => {
        lostAt = Date.now()
        change(false)
      },
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

/**
 * Keeps the lists of a project up to date by its activity while the tab is visible. A user who chose notifications receives them from
 * hidden tabs too.
 */
export function useActivity(projectId: string | undefined): void {
  const cache = useQueryClient()
  const navigate = useNavigate()
  const { data: me } = useMe()
  const isAllowed = usePermissions(projectId)(streamActivity) === true
  const isKept = hasNotices(useNoticeChoice(me?.id, projectId))
  const tell = async (entry: ActivityEntry, signal: AbortSignal): Promise<void> => {
    if (!me || noticePermission() !== 'granted') return
    const { notify } = await import('./notify.ts')
    await notify(entry, me.id, signal, place => void navigate(place))
  }
  useWhileVisible(
    projectId,
    // An item that is not shown waits in the inbox.
    (id, signal) => follow(id, cache, entry => void tell(entry, signal).catch(() => {}), signal),
    isAllowed && me !== undefined,
    isKept,
  )
}
