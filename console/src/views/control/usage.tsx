import { listProjectPrices, listQuotas } from '@muster/client/operations'
import { Page } from '#components/page.tsx'
import { AddressTabs } from '#components/record.tsx'
import { usePermissions, useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'
import { Prices } from './prices.tsx'
import { Quotas } from './quotas.tsx'
import { UsageReport } from './usage-report.tsx'

/** The usage, limits and costs of a project. */
export function Usage() {
  const isAllowed = usePermissions(useProjectId())
  const tabs = [
    { value: 'usage', title: strings.nav.usage, content: () => <UsageReport /> },
    ...(isAllowed(listQuotas) ? [{ value: 'quotas', title: strings.quotas.title, content: () => <Quotas /> }] : []),
    ...(isAllowed(listProjectPrices)
      ? [{ value: 'prices', title: strings.prices.title, content: () => <Prices /> }]
      : []),
  ]
  return (
    <Page title={strings.nav.usage} intro={strings.usage.intro}>
      <AddressTabs tabs={tabs} />
    </Page>
  )
}
