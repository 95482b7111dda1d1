import { Button, Group, Stack, Table, Text, TextInput } from '@mantine/core'
import { readUsageReceipt } from '@muster/client/operations'
import { useState } from 'react'
import { api } from '#api.ts'
import { useAction } from '#components/actions.tsx'
import { FailureAlert } from '#components/states.tsx'
import { costText, visible } from '#components/text.tsx'
import * as strings from '#strings.ts'

const texts = strings.usage

/** The receipt of a turn or a run, by its ID. */
export function Receipt({ projectId }: { projectId: string }) {
  const [id, setId] = useState('')
  const read = useAction({
    run: async (of: string) =>
      readUsageReceipt(api, {
        project_id: projectId,
        ...(of.startsWith('gen_') ? { generation_id: of } : { orchestration_run_id: of }),
      }),
  })
  return (
    <Stack gap="md">
      <form
        onSubmit={event => {
          event.preventDefault()
          if (id.trim()) read.mutate(id.trim())
        }}
      >
        <Group align="flex-end" gap="sm">
          <TextInput
            label={texts.receiptOf}
            value={id}
            onChange={event => setId(event.currentTarget.value)}
            flex="1 1 260px"
            data-autofocus
          />
          <Button type="submit" loading={read.isPending}>
            {strings.open}
          </Button>
        </Group>
      </form>
      {read.error && <FailureAlert error={read.error} />}
      {read.data && (
        <>
          <Table className="rows" aria-label={texts.receipt}>
            <Table.Tbody>
              {read.data.line_items.flatMap(({ event_id, model, node_id, components }) =>
                components.map(({ component, quantity, unit, billable, cost_usd }) => (
                  <Table.Tr key={`${event_id} ${component}`}>
                    <Table.Td>
                      {visible(node_id ? `${node_id}: ${model}` : model)}
                      <Text size="sm" c="dimmed">
                        {visible(component)}
                      </Text>
                    </Table.Td>
                    <Table.Td>
                      {quantity.toLocaleString()} {visible(unit)}
                    </Table.Td>
                    <Table.Td>{cost_usd === null && !billable ? strings.none : costText(cost_usd)}</Table.Td>
                  </Table.Tr>
                )),
              )}
            </Table.Tbody>
          </Table>
          <Text fw={600}>
            {texts.total} {costText(read.data.totals.cost_usd)}
          </Text>
          {read.data.components
            .filter(({ unpriced_quantity }) => unpriced_quantity > 0)
            .map(({ component, unit, unpriced_quantity, unpriced_share }) => (
              <Text size="sm" key={`${component} ${unit}`}>
                {texts.unpriced}: {visible(component)}{' '}
                {texts.unpricedOf(unpriced_quantity.toLocaleString(), texts.share(unpriced_share))}
              </Text>
            ))}
        </>
      )}
    </Stack>
  )
}
