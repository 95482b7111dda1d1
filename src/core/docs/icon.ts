import { readFileSync } from 'node:fs'

const svg = readFileSync(new URL('icon.svg', import.meta.url), 'utf8').trim()

/**
 * The icon of a page, for its head. It is part of the page: browsers request `/favicon.ico` for a page without an icon, and an
 * icon with an address again at each change of the address. The page's policy must allow images of `data:`.
 */
const link = `<link rel="icon" href="data:image/svg+xml;base64,${Buffer.from(svg).toString('base64')}">`

/** Returns an HTML page with the icon after its title. */
export const withIcon = (page: string): string => page.replace('</title>', `</title>${link}`)
