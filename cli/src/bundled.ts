import { readFileSync } from 'node:fs'

/** Files that come with the program. The program of a single file contains them. */

/** Returns the commands of this version. */
export const readCommands = (): Buffer => readFileSync(new URL('../../client/commands.json', import.meta.url))

/** Returns the price book of this version. */
export const readPrices = (): Buffer => readFileSync(new URL('../price-book.json', import.meta.url))
