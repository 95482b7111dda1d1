import { Box, Group, Stack, Text, Title } from '@mantine/core'
import { type ReactNode, useEffect } from 'react'
import * as strings from '#strings.ts'
import { visible } from './text.tsx'

/** Frame of a view: title, explanation, actions. */
export function Page({
  title,
  intro,
  actions,
  children,
}: {
  title: string
  intro?: ReactNode
  actions?: ReactNode
  children: ReactNode
}) {
  const shown = visible(title)
  useEffect(() => {
    document.title = `${shown} – ${strings.product}`
  }, [shown])
  return (
    <Stack gap="lg">
      <Group justify="space-between" align="flex-start" gap="md">
        <Box flex="1 1 260px" miw={0}>
          <Title order={1} size="h2" style={{ overflowWrap: 'anywhere' }}>
            {shown}
          </Title>
          {intro && (
            <Text component="div" c="dimmed" mt={2}>
              {intro}
            </Text>
          )}
        </Box>
        {actions && <Group gap="sm">{actions}</Group>}
      </Group>
      {children}
    </Stack>
  )
}
