import { Stack, Text } from '@mantine/core'
import * as strings from '#strings.ts'
import { visible } from './text.tsx'
import { TextDifference } from './text-difference.tsx'

/** What differs at a path. */
export type Difference = { path: string; before?: unknown; after?: unknown }

/** The text of a value that is compared: of anything but a text its JSON. */
const textOf = (value: unknown): string | null => {
  if (value === undefined || value === null) return null
  return typeof value === 'string' ? value : JSON.stringify(value, null, 2)
}

/** The differences of two versions, path by path and word by word. */
export function Changes({ changes }: { changes: readonly Difference[] }) {
  if (changes.length === 0) return <Text c="dimmed">{strings.agents.same}</Text>
  return (
    <Stack gap="lg">
      {changes.map(({ path, before, after }) => (
        <Stack gap={6} key={path}>
          <Text fw={600} className="mono">
            {visible(path)}
          </Text>
          <TextDifference
            before={textOf(before)}
            after={textOf(after)}
            labels={[`${path} ${strings.agents.before}`, `${path} ${strings.agents.after}`]}
          />
        </Stack>
      ))}
    </Stack>
  )
}
