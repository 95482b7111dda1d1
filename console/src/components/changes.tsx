import { SimpleGrid, Stack, Text } from '@mantine/core'
import type { Comparison } from '@muster/client'
import * as strings from '#strings.ts'
import { visible } from './text.tsx'
import { Value } from './value.tsx'

/** The differences of two versions, path by path. */
export function Changes({ changes }: Pick<Comparison, 'changes'>) {
  if (changes.length === 0) return <Text c="dimmed">{strings.agents.same}</Text>
  return (
    <Stack gap="lg">
      {changes.map(({ path, before, after }) => (
        <Stack gap={6} key={path}>
          <Text fw={600} className="mono">
            {visible(path)}
          </Text>
          <SimpleGrid cols={{ base: 1, sm: 2 }}>
            {(
              [
                [strings.agents.before, before],
                [strings.agents.after, after],
              ] as const
            ).map(([title, value]) => (
              <Stack gap={2} key={title}>
                <Text size="sm" c="dimmed">
                  {title}
                </Text>
                <Value value={value ?? null} label={`${path} ${title}`} />
              </Stack>
            ))}
          </SimpleGrid>
        </Stack>
      ))}
    </Stack>
  )
}
