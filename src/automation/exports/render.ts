import { htmlOf } from './html.ts'
import { markdownOf } from './markdown.ts'
import type { Format } from './model.ts'
import type { Snapshot } from './snapshot.ts'

/** How each format is made and called. */
export const RENDERERS: Record<Format, { extension: string; type: string; render: (snapshot: Snapshot) => string }> = {
  json: {
    extension: 'json',
    type: 'application/json',
    render: snapshot => `${JSON.stringify(snapshot, null, 2)}\n`,
  },
  markdown: { extension: 'md', type: 'text/markdown', render: markdownOf },
  html: { extension: 'html', type: 'text/html', render: htmlOf },
}
