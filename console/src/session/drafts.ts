/**
 * Input that was not sent, in the storage of the tab: it survives a reload and a crash of the tab, and ends with the tab,
 * with a sign-out and with the sign-in of another user.
 */

const PREFIX = 'muster-draft'
/** Longest text that is stored: the storage of a tab holds 5 MB. */
const MAX_LENGTH = 200_000

let user = ''

const remove = (isRemoved: (key: string) => boolean): void => {
  for (const key of Object.keys(sessionStorage))
    if (key.startsWith(`${PREFIX} `) && isRemoved(key)) sessionStorage.removeItem(key)
}

/** Names the user whose input is stored, and removes what others left in this tab. */
export function claimDrafts(id: string): void {
  user = id
  remove(key => !key.startsWith(`${PREFIX} ${id} `))
}

/** Removes all input that was not sent. */
export const forgetDrafts = (): void => remove(() => true)

/** Returns the key of an input in the current view. */
export const draftKey = (...names: string[]): string => [PREFIX, user, location.pathname, ...names].join(' ')

/** Returns stored input; undefined without one. */
export function readDraft(key: string): unknown {
  const text = sessionStorage.getItem(key)
  return text === null ? undefined : JSON.parse(text)
}

/** Stores input; undefined removes it. */
export function writeDraft(key: string, value: unknown): void {
  const text = value === undefined ? undefined : JSON.stringify(value)
  if (text === undefined) sessionStorage.removeItem(key)
  else if (text.length <= MAX_LENGTH)
    try {
      sessionStorage.setItem(key, text)
    } catch {
      // The storage is full: the input stays in the page.
    }
}
