/** Commands of this program that are no operations of the service, with a summary. */
export const OWN_COMMANDS = {
  login: 'sign in',
  logout: 'sign out',
  whoami: 'show the user and the credential in use',
  profile: 'list and change profiles',
  api: 'send any request',
  chat: 'talk to an agent',
  listen: 'forward events to a local address',
  'formations deploy': 'deploy a template from files',
  'prices import': 'add the prices of a price book',
  open: 'open the console in the browser',
  completion: 'print a completion script',
  version: 'show the versions of this program and of the service',
} as const

/** Words after the commands of this program. */
export const OWN_WORDS: Partial<Record<keyof typeof OWN_COMMANDS, readonly string[]>> = {
  profile: ['list', 'get', 'set', 'unset', 'delete', 'sync'],
  completion: ['bash', 'zsh', 'fish', 'pwsh'],
}

export type OwnName = keyof typeof OWN_COMMANDS

/** Returns the commands of this program below some words, with their summaries. */
export const ownBelow = (words: readonly string[]): [string, string][] =>
  Object.entries(OWN_COMMANDS).filter(([name]) => name.startsWith(`${words.join(' ')} `))

/** Commands for the deployment, with a summary, which the caller of this program runs. */
export type OperatorVerbs = Record<string, string>
