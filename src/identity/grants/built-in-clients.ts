/** Built-in clients. */
export const CONSOLE = 'muster-console'
export const CLI = 'muster-cli'

export const isFirstParty = (clientId: string): boolean => clientId === CONSOLE || clientId === CLI
