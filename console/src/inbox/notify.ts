import type { ActivityEntry } from '@muster/client'
import { getApproval, getException, getSession } from '@muster/client/operations'
import { api } from '#api.ts'
import { visible } from '#components/text.tsx'
import * as strings from '#strings.ts'
import { type Notice, noticePermission, readNoticeChoice } from './notices.ts'

/**
 * Notifications of the browser, loaded when one is due. The item of a notification is read first, with the rights of the user: an item
 * that the user may not read, or that is settled, is not shown.
 */

const texts = strings.notices

const MAX_TEXT = 200

/** A place in the console. */
export type Place = { to: string; search: { item?: string } }

/** Item of a notification: its view in the project with the search of its address, and its text. */
type Item = { view: string; search: Place['search']; text: string }

function noticeOf({ kind, detail }: ActivityEntry): Notice | null {
  if (kind === 'approval_created') return 'approvals'
  if (kind !== 'exception_created') return null
  return detail?.exception_kind === 'human_requested' ? 'attention' : 'exceptions'
}

/** Reads an item; null if it is settled. Fails if the user may not read it. */
async function readItem(kind: Notice, { ref_id, detail }: ActivityEntry, signal: AbortSignal): Promise<Item | null> {
  const id = String(ref_id)
  const inInbox = { view: 'inbox', search: { item: id } }
  if (kind === 'approvals') {
    const { status, title, proposed_action } = await getApproval(api, { approval_id: id }, { signal })
    return status === 'pending' ? { ...inInbox, text: title ?? proposed_action?.tool_name ?? '' } : null
  }
  if (kind === 'exceptions') {
    const { status, title } = await getException(api, { exception_id: id }, { signal })
    return status === 'resolved' ? null : { ...inInbox, text: title }
  }
  const session = String(detail?.session_id)
  const { attention } = await getSession(api, { session_id: session }, { signal })
  return attention && { view: `sessions/${encodeURIComponent(session)}`, search: {}, text: attention.reason ?? '' }
}

/** Shows a notification of an entry of the activity, if the user chose its kind and may read its item. */
export async function notify(
  entry: ActivityEntry,
  userId: string,
  signal: AbortSignal,
  open: (place: Place) => void,
): Promise<void> {
  const kind = noticeOf(entry)
  const choice = readNoticeChoice(userId, entry.project_id)
  if (kind === null || !choice[kind] || noticePermission() !== 'granted') return
  const item = await readItem(kind, entry, signal).catch(() => null)
  if (item === null || signal.aborted) return
  const notification = new Notification(texts.titles[kind], {
    tag: entry.id,
    ...(choice.details && item.text ? { body: visible(item.text).slice(0, MAX_TEXT) } : {}),
  })
  notification.onclick = () => {
    window.focus()
    notification.close()
    open({ to: `/p/${entry.project_id}/${item.view}`, search: item.search })
  }
}
