/**
 * Input that was not sent, in the storage of the tab: it survives a reload and a crash of the tab and the end of a sign-in,
 * and ends with the tab, when the user signs out and when another user signs in.
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

/** Leaves stored input unchanged until a user claims it: forms that close with their page neither change nor remove it. */
export const keepDrafts = (): void => {
  user = ''
}

/** Returns the key of an input in the view of an address; a scope distinguishes equal forms of the view. */
export const draftKey = (address: string, scope: string, name: string): string =>
  [PREFIX, user, address, scope, name].join(' ')

/** Removes the input of a scope in all views. */
export const forgetScope = (scope: string): void => remove(key => key.split(' ')[3] === scope)

/** Returns stored input; undefined without one. */
export function readDraft(key: string): unknown {
  const text = sessionStorage.getItem(key)
  return text === null ? undefined : JSON.parse(text)
}

/** Stores input; undefined removes it. */
export function writeDraft(key: string, value: unknown): void {
  if (!user) return
  const text = value === undefined ? undefined : JSON.stringify(value)
  if (text === undefined) sessionStorage.removeItem(key)
  else if (text.length <= MAX_LENGTH)
    try {
      sessionStorage.setItem(key, text)
    } catch {
      // The storage is full: the input stays in the page.
    }
}
