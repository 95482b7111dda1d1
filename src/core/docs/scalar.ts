import { existsSync } from 'node:fs'

/** The script of the interactive reference, which `npm run build` copies from its package. */
export const SCALAR = new URL('../../../docs/dist/scalar.js', import.meta.url)

export const isReferenceBuilt = (): boolean => existsSync(SCALAR)
