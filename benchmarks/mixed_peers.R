# lme4 or glmmTMB on one table: Rscript mixed_peers.R table.csv formula family library group,group
# Prints its version, processor seconds of a first and of four later fits, and fixed effects with their errors.
given <- commandArgs(trailingOnly = TRUE)
table <- read.csv(given[1], stringsAsFactors = TRUE)
for (name in strsplit(given[5], ",")[[1]]) table[[name]] <- factor(table[[name]])
formula <- as.formula(given[2])
suppressPackageStartupMessages(library(given[4], character.only = TRUE))
fit <- function() {
  if (given[4] == "glmmTMB") {
    family <- switch(given[3], gaussian = gaussian(), poisson = poisson(), bernoulli = binomial())
    return(glmmTMB(formula, table, family = family))
  }
  if (given[3] == "gaussian") return(lmer(formula, table))
  glmer(formula, table, family = if (given[3] == "poisson") poisson() else binomial())
}
seconds <- numeric(0)
for (turn in 1:5) seconds <- c(seconds, sum(system.time(model <- suppressWarnings(fit()))[1:2]))
cat(sprintf("seconds %.6f\n", seconds), sep = "")
fixed <- if (given[4] == "glmmTMB") summary(model)$coefficients$cond else summary(model)$coefficients
cat(sprintf("fixed %s %.10g %.10g\n", gsub(" ", "", rownames(fixed)), fixed[, 1], fixed[, 2]), sep = "")
cat("version", as.character(packageVersion(given[4])), "\n")
