import { Badge, Card, Group, Stack, Switch, Table, Text } from '@mantine/core'
import { listSystemSettings } from '@muster/client/operations'
import { useQuery } from '@tanstack/react-query'
import { api } from '#api.ts'
import { useFilters } from '#components/filters.ts'
import { SearchField } from '#components/list.tsx'
import { Loaded, NothingMatches } from '#components/states.tsx'
import { visible } from '#components/text.tsx'
import * as strings from '#strings.ts'

const texts = strings.settings

/** Settings of the processes, which the environment sets; values of secrets are never sent. */
export function DeploymentSettings() {
  const { filters, setFilters } = useFilters()
  const settings = useQuery({
    queryKey: ['system', 'settings'],
    queryFn: async ({ signal }) => listSystemSettings(api, {}, { signal }).all(),
    staleTime: 60_000,
  })
  const wanted = (filters.q ?? '').toLowerCase()
  return (
    <Stack gap="lg">
      <Text c="dimmed">{texts.deploymentText}</Text>
      <Group gap="sm">
        <SearchField label={texts.find} />
        <Switch
          label={texts.changed}
          checked={Boolean(filters.changed)}
          onChange={event => setFilters({ changed: event.currentTarget.checked ? '1' : undefined })}
        />
      </Group>
      <Loaded query={settings} operation={listSystemSettings} rows={8}>
        {rows => {
          const shown = rows.filter(
            ({ name, doc, set }) => (!filters.changed || set) && `${name} ${doc}`.toLowerCase().includes(wanted),
          )
          if (shown.length === 0)
            return <NothingMatches onClear={() => setFilters({ q: undefined, changed: undefined })} />
          return (
            <Card withBorder padding={0} radius="lg">
              <Table className="rows" verticalSpacing="sm" horizontalSpacing="md" aria-label={texts.deployment}>
                <Table.Tbody>
                  {shown.map(({ name, value, default: byDefault, doc, secret, set }) => (
                    <Table.Tr key={name}>
                      <Table.Td w="60%">
                        <Text size="sm" fw={600} className="mono">
                          {name}
                        </Text>
                        <Text size="sm" c="dimmed">
                          {doc.replaceAll('`', '')}
                        </Text>
                      </Table.Td>
                      <Table.Td>
                        {secret ? (
                          <Badge variant="default">{set ? texts.secretSet : texts.secretUnset}</Badge>
                        ) : (
                          <span className="mono">{visible(value || strings.none)}</span>
                        )}
                        {set && !secret && (
                          <Text size="sm" c="dimmed">
                            {texts.byDefault} <span className="mono">{byDefault || strings.none}</span>
                          </Text>
                        )}
                      </Table.Td>
                    </Table.Tr>
                  ))}
                </Table.Tbody>
              </Table>
            </Card>
          )
        }}
      </Loaded>
    </Stack>
  )
}
