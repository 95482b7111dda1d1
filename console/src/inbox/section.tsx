import { Badge, Group, Stack, Title } from '@mantine/core'
import type { ReactNode } from 'react'

/** A part of the inbox, with the number of waiting items. */
export function InboxSection({ title, count, children }: { title: string; count: number; children: ReactNode }) {
  return (
    <Stack gap="sm" component="section" aria-label={title}>
      <Group gap="sm">
        <Title order={2} size="h4">
          {title}
        </Title>
        <Badge variant="default">{count.toLocaleString()}</Badge>
      </Group>
      {children}
    </Stack>
  )
}
