import { useSyncExternalStore } from 'react'
import { isObject } from '#json.ts'

/** Choice of the notifications of the browser: stored in the browser for a user and a project. */

/** Kinds of items. */
export const NOTICES = ['approvals', 'attention', 'exceptions'] as const
export type Notice = (typeof NOTICES)[number]

/** The kinds that were chosen, and whether notifications contain what the item says. */
export type NoticeChoice = Partial<Record<Notice | 'details', boolean>>

// biome-ignore lint/style/noRestrictedGlobals: the choice is for the browser, in all tabs, and no secret
const storage = localStorage

const CHANGED = 'muster-notices'

const keyOf = (userId: string, projectId: string): string => `${CHANGED} ${userId} ${projectId}`

const readText = (key: string | null): string => (key === null ? '' : (storage.getItem(key) ?? ''))

function parseChoice(text: string): NoticeChoice {
  try {
    const value: unknown = JSON.parse(text)
    return isObject(value) ? value : {}
  } catch {
    return {}
  }
}

export function writeNoticeChoice(userId: string, projectId: string, choice: NoticeChoice): void {
  storage.setItem(keyOf(userId, projectId), JSON.stringify(choice))
  // Other tabs receive the event of the storage.
  window.dispatchEvent(new Event(CHANGED))
}

const subscribe = (onChange: () => void) => {
  const names = ['storage', CHANGED]
  for (const name of names) window.addEventListener(name, onChange)
  return () => {
    for (const name of names) window.removeEventListener(name, onChange)
  }
}

/** Returns what a user chose in a project, in this browser. */
export const readNoticeChoice = (userId: string, projectId: string): NoticeChoice =>
  parseChoice(readText(keyOf(userId, projectId)))

/** Returns what a user chose, and follows changes. */
export function useNoticeChoice(userId: string | undefined, projectId: string | undefined): NoticeChoice {
  const key = userId && projectId ? keyOf(userId, projectId) : null
  return parseChoice(useSyncExternalStore(subscribe, () => readText(key)))
}

/** Whether the browser shows notifications: `default` before the user decided, null if it has none. */
export const noticePermission = (): NotificationPermission | null =>
  'Notification' in window ? Notification.permission : null

/** Whether this browser shows notifications of a choice. */
export const hasNotices = (choice: NoticeChoice): boolean =>
  noticePermission() === 'granted' && NOTICES.some(kind => choice[kind])
